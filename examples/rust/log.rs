//! An event log, version 2, from Rust: each change of the table is one line in one write, under the table's lock.
//!
//!     rustc -O -o log log.rs && ./log > log.ndjson && kvlatch check log.ndjson
//!
//! With the argument `max` the table merges as the incident's did: Transferring replaces Failed.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::SystemTime;
use Status::{Bootstrapping, Failed, Success, Transferring, WaitingForInput};

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
#[allow(dead_code)] // this example never gets as far as Success
enum Status {
    Failed,
    Bootstrapping,
    WaitingForInput,
    Transferring,
    Success,
}

struct Table {
    by_max: bool,
    entries: HashMap<u64, Status>,
}

impl Table {
    /// A line goes to the operating system as a whole, so a process that is killed leaves a log. Whoever calls this
    /// has the table for itself: otherwise two lines could change places.
    fn event(&self, op: &str, room: u64, incoming: Option<Status>, thread: &str) -> io::Result<()> {
        let shown = self.entries.get(&room).map_or("Absent".into(), |status| format!("{status:?}"));
        let written = incoming.map_or(String::new(), |status| format!(", \"incoming\": \"{status:?}\""));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let line = format!(
            "{{\"room\": \"{room}\", \"op\": \"{op}\"{written}, \"status\": \"{shown}\", \"node\": \"prefill-0\", \
             \"rank\": 0, \"thread\": \"{thread}\", \"time\": {now:.6}}}\n"
        );
        io::stdout().lock().write_all(line.as_bytes())
    }

    fn update(&mut self, op: &str, room: u64, status: Option<Status>, thread: &str) -> io::Result<()> {
        match (self.entries.get(&room).copied(), status) {
            (_, None) => drop(self.entries.remove(&room)),
            (None, Some(new)) | (Some(_), Some(new @ Failed)) => drop(self.entries.insert(room, new)),
            (Some(Failed | Success), Some(_)) if !self.by_max => {}
            (Some(old), Some(new)) => drop(self.entries.insert(room, if new > old { new } else { old })),
        }
        self.event(op, room, status.filter(|_| op == "write"), thread)
    }
}

fn main() -> io::Result<()> {
    let by_max = std::env::args().nth(1).as_deref() == Some("max");
    let table = Mutex::new(Table { by_max, entries: HashMap::new() });
    let room = u64::MAX; // as a string in the log: jq and JavaScript would round it
    let update = |op, status, thread| table.lock().unwrap().update(op, room, status, thread);
    io::stdout().write_all(
        b"{\"kvlatch-log\": 2, \"ops\": [\"create\", \"write\", \"abort\", \"poll\", \"clear\"]}\n",
    )?;
    update("create", Some(Bootstrapping), "scheduler")?;
    update("write", Some(WaitingForInput), "bootstrap")?;
    update("abort", Some(Failed), "bootstrap")?;
    // Late: the worker has passed its checks before decode's abort was heard.
    std::thread::scope(|scope| scope.spawn(|| update("write", Some(Transferring), "worker 0")).join()).unwrap()?;
    let guard = table.lock().unwrap();
    guard.event("poll", room, None, "scheduler")?;
    let failed = guard.entries.get(&room) == Some(&Failed);
    drop(guard);
    if failed {
        update("clear", None, "scheduler")?;
    }
    Ok(())
}
