//! A status manager in Rust, with the protocol of kvlatch/reference/oracle/process.py around it.
//!
//!     rustc -O -o manager manager.rs && kvlatch conform --exec ./manager
//!
//! The rules are four: the first terminal status wins; what is cleared leaves a tombstone, and a write counts only for
//! the request that the entry is about, or for a newer one; Success takes all chunks; pages are released once no
//! transfer reads them. With `--max` the first rule is the one of the incident: max(Failed, Success) is Success.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use Status::{Bootstrapping, Failed, Success, Transferring, WaitingForInput};

#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Status {
    Failed,
    Bootstrapping,
    WaitingForInput,
    Transferring,
    Success,
}

#[derive(Clone, Copy, Default)]
struct Request {
    cleared: bool,
    told: bool,
    reading: u32,          // transfers that run
    arrived: u32,          // transfers that went well
    chunks: Option<u32>,   // all of them, once that is known
    latch: Option<Status>, // what the sender says for ever, once the request was aborted or has ended
}

/// One room: the table's entry, and what is known of each request.
struct Room {
    by_max: bool,
    status: Option<Status>,
    owner: usize,         // the request that the entry, or its tombstone, is about
    infos: Option<usize>, // the request whose metadata is here
    of: Vec<Request>,     // by number, from 1
    released: Vec<usize>,
    told: Vec<(usize, Status)>,
}

impl Room {
    fn new(by_max: bool) -> Room {
        Room { by_max, status: None, owner: 1, infos: None, of: vec![], released: vec![], told: vec![] }
    }

    /// A call begins: there is a record of its request, and nothing has been done yet.
    fn called(&mut self, request: usize) {
        self.of.resize(self.of.len().max(request + 1), Request::default());
        self.released.clear();
        self.told.clear();
    }

    fn merge(&self, request: usize, incoming: Status) -> Status {
        match self.status.filter(|_| request == self.owner) {
            Some(Success) => Success,
            Some(Failed) if !self.by_max => Failed,
            Some(now) if incoming != Failed && now > incoming => now,
            _ => incoming,
        }
    }

    fn fresh(&self, request: usize) -> bool {
        request > self.owner || (request == self.owner && !self.of[request].cleared)
    }

    fn put(&mut self, request: usize, status: Status) {
        if self.fresh(request) {
            self.status = Some(self.merge(request, status));
            self.owner = request;
        }
    }

    /// Write a terminal status, and tell decode what stands.
    fn conclude(&mut self, request: usize, status: Status) {
        self.put(request, status);
        let due = self.fresh(request) && !self.of[request].told;
        if let (true, Some(stands @ (Failed | Success))) = (due, self.status) {
            self.of[request].told = true;
            self.of[request].latch = Some(stands);
            self.told.push((request, stands));
        }
    }

    fn forget_infos(&mut self, request: usize) {
        self.infos = self.infos.filter(|&whose| whose != request);
    }

    fn drain(&mut self, request: usize) {
        if self.of[request].cleared && self.of[request].reading == 0 {
            self.released.push(request);
        }
    }

    fn metadata(&mut self, request: usize) {
        if self.fresh(request) {
            self.infos = Some(request);
            self.put(request, WaitingForInput);
        }
    }

    fn abort_notice(&mut self, request: usize) {
        if request == self.owner && self.status.is_some_and(|now| now != Success) {
            self.put(request, Failed);
            self.forget_infos(request);
        }
    }

    fn abort(&mut self, request: usize) {
        let done = request == self.owner && self.status == Some(Success);
        self.of[request].latch = Some(if done { Success } else { Failed });
        self.put(request, Failed);
    }

    fn start(&mut self, request: usize) -> bool {
        if matches!(self.status, None | Some(Failed)) || self.owner != request {
            return false;
        }
        if self.infos != Some(request) {
            self.conclude(request, Failed);
            return false;
        }
        self.put(request, Transferring);
        self.of[request].reading += 1;
        true
    }

    fn finish(&mut self, request: usize, chunk: u32, last: bool, ok: bool) {
        let own = &mut self.of[request];
        own.reading -= 1;
        own.arrived += u32::from(ok);
        if last {
            own.chunks = Some(chunk + 1);
        }
        if !ok {
            self.conclude(request, Failed);
        } else if own.chunks == Some(own.arrived) {
            self.conclude(request, Success);
            self.forget_infos(request);
        }
        self.drain(request);
    }

    /// A request whose room a newer one has taken has failed.
    fn poll(&self, request: usize) -> Status {
        self.of[request].latch.or(self.status.filter(|_| request == self.owner)).unwrap_or(Failed)
    }

    fn clear(&mut self, request: usize) {
        if request >= self.owner {
            self.status = None;
            self.owner = request;
        }
        self.forget_infos(request);
        self.of[request].cleared = true;
        self.drain(request);
    }
}

// --- The protocol ----------------------------------------------------------------------------------------------------

/// The text of a member of a call, without quotes; empty if the call does not have it.
fn member<'a>(line: &'a str, name: &str) -> &'a str {
    let key = format!("\"{name}\":");
    let rest = line.find(&key).map_or("", |at| &line[at + key.len()..]);
    rest.split([',', '}']).next().unwrap_or("").trim_matches('"')
}

fn name(status: Status) -> String {
    format!("\"{status:?}\"")
}

fn main() -> io::Result<()> {
    let by_max = std::env::args().any(|argument| argument == "--max");
    let mut rooms: HashMap<u64, Room> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let number = |name| member(&line, name).parse::<u64>().unwrap_or(0);
        let (request, chunk) = (number("request") as usize, number("chunk") as u32);
        let (last, ok) = (member(&line, "last") == "true", member(&line, "ok") == "true");
        if member(&line, "event") == "fresh" {
            rooms.clear();
            println!("{{\"fresh\":true}}");
            continue;
        }
        let room = rooms.entry(number("room")).or_insert_with(|| Room::new(by_max));
        room.called(request);
        let mut answer = None;
        match member(&line, "event") {
            "create" => room.put(request, Bootstrapping),
            "metadata" => room.metadata(request),
            "abort_notice" => room.abort_notice(request),
            "abort" => room.abort(request),
            "start" => answer = Some(room.start(request).to_string()),
            "finish" => room.finish(request, chunk, last, ok),
            "poll" => answer = Some(name(room.poll(request))),
            "clear" => room.clear(request),
            _ => return Err(io::Error::other(format!("no such event: {line}"))),
        }
        let status = room.status.map_or("null".to_string(), name);
        let answer = answer.map_or(String::new(), |answer| format!("\"answer\":{answer},"));
        let told: Vec<String> = room.told.iter().map(|&(whose, word)| format!("[{whose},{}]", name(word))).collect();
        println!("{{\"status\":{status},{answer}\"released\":{:?},\"told\":[{}]}}", room.released, told.join(","));
        io::stdout().flush()?;
    }
    Ok(())
}
