/* A status manager in C, with the protocol of kvlatch/reference/oracle/process.py around it.

   cc -O2 -o manager manager.c && kvlatch conform --exec ./manager

   The rules are four: the first terminal status wins; what is cleared leaves a tombstone, and a write counts only for
   the request that the entry is about, or for a newer one; Success takes all chunks; pages are released once no
   transfer reads them. */

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#ifndef BY_MAX
#define BY_MAX 0 /* manager_max.c says 1 */
#endif

enum status { FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS, ABSENT };
static const char *const NAMES[] = {"\"Failed\"",       "\"Bootstrapping\"", "\"WaitingForInput\"",
                                    "\"Transferring\"", "\"Success\"",       "null"};

/* What a write stores. */
static enum status merge(enum status now, enum status incoming) {
    if (now == ABSENT || incoming == FAILED) return now == SUCCESS ? now : incoming;
    if (now == FAILED && !BY_MAX) return now;
    return incoming > now ? incoming : now;
}

/* --- One room: the table's entry, and what is known of its two requests --------------------------------------------- */

static struct {
    enum status status;
    int owner;  /* the request that the entry, or its tombstone, is about */
    int infos;  /* the request whose metadata is here, or 0 */
    struct {
        bool cleared;
        int reading, arrived, chunks; /* transfers that run, transfers that went well, and all, once that is known */
        enum status latch;            /* what the sender says for ever, once its request was aborted */
    } of[3];
} room;

static char released[16], told[64]; /* of the answer */

static bool fresh(int request) { return request > room.owner || (request == room.owner && !room.of[request].cleared); }

static void put(int request, enum status status) {
    if (!fresh(request)) return;
    room.status = merge(room.status, status);
    room.owner = request;
}

/* Write a terminal status, and tell decode what stands. */
static void conclude(int request, enum status status) {
    put(request, status);
    if (fresh(request) && (room.status == FAILED || room.status == SUCCESS))
        sprintf(told, "[%d,%s]", request, NAMES[room.status]);
}

static void drain(int request) {
    if (room.of[request].cleared && room.of[request].reading == 0) sprintf(released, "%d", request);
}

static void metadata(int request) {
    if (!fresh(request)) return;
    room.infos = request;
    put(request, WAITING);
}

static void abort_notice(int request) {
    if (room.status == ABSENT || room.status == SUCCESS || !fresh(request)) return;
    put(request, FAILED);
    if (room.infos == request) room.infos = 0;
}

static void abort_request(int request) {
    room.of[request].latch = room.status == SUCCESS ? SUCCESS : FAILED;
    put(request, FAILED);
}

static bool start(int request) {
    if (room.status == FAILED || room.status == ABSENT || room.owner != request) return false;
    if (room.infos != request) {
        conclude(request, FAILED);
        return false;
    }
    put(request, TRANSFERRING);
    room.of[request].reading++;
    return true;
}

static void finish(int request, int chunk, bool last, bool ok) {
    room.of[request].reading--;
    if (last) room.of[request].chunks = chunk + 1;
    if (!ok) {
        conclude(request, FAILED);
    } else if (++room.of[request].arrived == room.of[request].chunks) {
        conclude(request, SUCCESS);
        if (room.infos == request) room.infos = 0;
    }
    drain(request);
}

static enum status poll(int request) {
    if (room.of[request].latch != ABSENT) return room.of[request].latch;
    return room.status == ABSENT ? FAILED : room.status;
}

static void clear(int request) {
    room.status = ABSENT;
    room.owner = request;
    room.of[request].cleared = true;
    room.infos = 0;
    drain(request);
}

/* --- The protocol --------------------------------------------------------------------------------------------------- */

int main(void) {
    char line[256], event[16], last[6], ok[6];
    while (fgets(line, sizeof line, stdin)) {
        int request = 0, chunk = 0;
        *event = *last = *ok = *released = *told = 0;
        sscanf(line,
               "{\"event\":\"%15[a-z_]\",\"room\":%*d,\"request\":%d,\"chunk\":%d,\"last\":%5[a-z],\"ok\":%5[a-z]",
               event, &request, &chunk, last, ok);
        const char *answer = NULL;
        if (!strcmp(event, "fresh")) {
            memset(&room, 0, sizeof room);
            room.status = room.of[1].latch = room.of[2].latch = ABSENT;
            room.owner = 1;
            puts("{\"fresh\":true}");
            fflush(stdout);
            continue;
        }
        if (!strcmp(event, "create")) put(request, BOOTSTRAPPING);
        else if (!strcmp(event, "metadata")) metadata(request);
        else if (!strcmp(event, "abort_notice")) abort_notice(request);
        else if (!strcmp(event, "abort")) abort_request(request);
        else if (!strcmp(event, "start")) answer = start(request) ? "true" : "false";
        else if (!strcmp(event, "finish")) finish(request, chunk, *last == 't', *ok == 't');
        else if (!strcmp(event, "poll")) answer = NAMES[poll(request)];
        else if (!strcmp(event, "clear")) clear(request);
        else return fprintf(stderr, "no such event: %s", line), 1;
        printf("{\"status\":%s", NAMES[room.status]);
        if (answer) printf(",\"answer\":%s", answer);
        printf(",\"released\":[%s],\"told\":[%s]}\n", released, told);
        fflush(stdout);
    }
}
