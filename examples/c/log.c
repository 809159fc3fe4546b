/* An event log, version 2, from C: each change of the table is one line in one write(2), under the table's lock.

   cc -O2 -pthread -o log log.c && ./log > log.ndjson && kvlatch check log.ndjson

   With the argument `max` the table merges as the incident's did: Transferring replaces Failed. */

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum status { FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS, ABSENT };
static const char *const NAMES[] = {"Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success", "Absent"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum status table = ABSENT; /* one room is enough for an example */
static bool by_max;

/* --- The log -------------------------------------------------------------------------------------------------------- */

/* A line goes to the operating system as a whole, so a process that is killed leaves a log. */
static void line(const char *text, int length) {
    if (write(STDOUT_FILENO, text, (size_t)length) != length) perror("the log is not whole");
}

/* Called with the lock: otherwise two lines could change places. `incoming` is ABSENT for all but a write. */
static void event(const char *op, uint64_t room, enum status incoming, const char *thread) {
    char text[256], written[48] = "";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (incoming != ABSENT) snprintf(written, sizeof written, ", \"incoming\": \"%s\"", NAMES[incoming]);
    line(text, snprintf(text, sizeof text,
                        "{\"room\": \"%" PRIu64 "\", \"op\": \"%s\"%s, \"status\": \"%s\", \"node\": \"prefill-0\", "
                        "\"rank\": 0, \"thread\": \"%s\", \"time\": %lld.%06ld}\n",
                        room, op, written, NAMES[table], thread, (long long)now.tv_sec, now.tv_nsec / 1000));
}

/* --- The table ------------------------------------------------------------------------------------------------------ */

static void update(const char *op, uint64_t room, enum status status, const char *thread) {
    pthread_mutex_lock(&lock);
    bool terminal = table == FAILED || table == SUCCESS;
    if (status == ABSENT || table == ABSENT || status == FAILED) table = status;
    else if (by_max || !terminal) table = status > table ? status : table;
    event(op, room, strcmp(op, "write") ? ABSENT : status, thread);
    pthread_mutex_unlock(&lock);
}

static void *worker(void *room) { /* late: it has passed its checks before decode's abort was heard */
    update("write", *(uint64_t *)room, TRANSFERRING, "worker 0");
    return NULL;
}

int main(int count, char **arguments) {
    static const char header[] = "{\"kvlatch-log\": 2, \"ops\": [\"create\", \"write\", \"abort\", \"poll\", \"clear\"]}\n";
    uint64_t room = 18446744073709551615u; /* as a string in the log: jq and JavaScript would round it */
    pthread_t thread;
    by_max = count > 1 && !strcmp(arguments[1], "max");
    line(header, sizeof header - 1);
    update("create", room, BOOTSTRAPPING, "scheduler");
    update("write", room, WAITING, "bootstrap");
    update("abort", room, FAILED, "bootstrap");
    pthread_create(&thread, NULL, worker, &room);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&lock);
    event("poll", room, ABSENT, "scheduler");
    pthread_mutex_unlock(&lock);
    if (table == FAILED) update("clear", room, ABSENT, "scheduler");
    return 0;
}
