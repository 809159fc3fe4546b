/* A status manager in C, with the protocol of kvlatch/reference/oracle/process.py around it.

   cc -O2 -o manager manager.c && kvlatch conform --exec ./manager

   The rules are four: the first terminal status wins; what is cleared leaves a tombstone, and a write counts only for
   the request that the entry is about, or for a newer one; Success takes all chunks; pages are released once no
   transfer reads them. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
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

/* --- A room: the table's entry, and what is known of each request ---------------------------------------------------- */

struct request {
    bool cleared, told;
    int reading, arrived, chunks; /* transfers that run, transfers that went well, and all, once that is known */
    enum status latch;            /* what the sender says for ever, once its request was aborted or has ended */
};

struct room {
    unsigned long long id;
    enum status status;
    int owner;          /* the request that the entry, or its tombstone, is about */
    int infos;          /* the request whose metadata is here, or 0 */
    struct request *of; /* by number, from 1 */
    int requests;
    struct room *next;
};

static struct room *rooms[1024], *room; /* by the id's low bits; the room that is called about */
static char released[16], told[64];     /* of the answer */

static void *grown(void *old, size_t size) {
    void *new = realloc(old, size);
    if (!new) exit(1);
    return new;
}

static struct room *found(unsigned long long id) {
    struct room **at = &rooms[id % 1024];
    while (*at && (*at)->id != id) at = &(*at)->next;
    if (!*at) {
        *at = grown(NULL, sizeof **at);
        **at = (struct room){.id = id, .status = ABSENT, .owner = 1};
    }
    return *at;
}

static struct request *of(int request) {
    if (request >= room->requests) {
        room->of = grown(room->of, (request + 1) * sizeof *room->of);
        while (room->requests <= request) room->of[room->requests++] = (struct request){.latch = ABSENT};
    }
    return &room->of[request];
}

static void forget_all(void) {
    for (int slot = 0; slot < 1024; slot++)
        while (rooms[slot]) {
            struct room *gone = rooms[slot];
            rooms[slot] = gone->next;
            free(gone->of);
            free(gone);
        }
}

static bool fresh(int request) {
    return request > room->owner || (request == room->owner && !of(request)->cleared);
}

static void put(int request, enum status status) {
    if (!fresh(request)) return;
    room->status = merge(request == room->owner ? room->status : ABSENT, status);
    room->owner = request;
}

/* Write a terminal status, and tell decode what stands. */
static void conclude(int request, enum status status) {
    put(request, status);
    if (!fresh(request) || of(request)->told || (room->status != FAILED && room->status != SUCCESS)) return;
    of(request)->told = true;
    of(request)->latch = room->status;
    sprintf(told, "[%d,%s]", request, NAMES[room->status]);
}

static void drain(int request) {
    if (of(request)->cleared && of(request)->reading == 0) sprintf(released, "%d", request);
}

static void metadata(int request) {
    if (!fresh(request)) return;
    room->infos = request;
    put(request, WAITING);
}

static void abort_notice(int request) {
    if (request != room->owner || room->status == ABSENT || room->status == SUCCESS) return;
    put(request, FAILED);
    if (room->infos == request) room->infos = 0;
}

static void abort_request(int request) {
    of(request)->latch = request == room->owner && room->status == SUCCESS ? SUCCESS : FAILED;
    put(request, FAILED);
}

static bool start(int request) {
    if (room->owner != request || room->status == FAILED || room->status == ABSENT) return false;
    if (room->infos != request) {
        conclude(request, FAILED);
        return false;
    }
    put(request, TRANSFERRING);
    of(request)->reading++;
    return true;
}

static void finish(int request, int chunk, bool last, bool ok) {
    of(request)->reading--;
    if (last) of(request)->chunks = chunk + 1;
    if (!ok) {
        conclude(request, FAILED);
    } else if (++of(request)->arrived == of(request)->chunks) {
        conclude(request, SUCCESS);
        if (room->infos == request) room->infos = 0;
    }
    drain(request);
}

/* A request whose room a newer one has taken has failed. */
static enum status poll(int request) {
    if (of(request)->latch != ABSENT) return of(request)->latch;
    return request != room->owner || room->status == ABSENT ? FAILED : room->status;
}

static void clear(int request) {
    if (request >= room->owner) {
        room->status = ABSENT;
        room->owner = request;
    }
    of(request)->cleared = true;
    if (room->infos == request) room->infos = 0;
    drain(request);
}

/* --- The protocol --------------------------------------------------------------------------------------------------- */

int main(void) {
    char line[256], event[16], last[6], ok[6];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long id = 0;
        int request = 0, chunk = 0;
        *event = *last = *ok = *released = *told = 0;
        sscanf(line,
               "{\"event\":\"%15[a-z_]\",\"room\":%llu,\"request\":%d,\"chunk\":%d,\"last\":%5[a-z],\"ok\":%5[a-z]",
               event, &id, &request, &chunk, last, ok);
        const char *answer = NULL;
        if (!strcmp(event, "fresh")) {
            forget_all();
            puts("{\"fresh\":true}");
            fflush(stdout);
            continue;
        }
        room = found(id);
        if (!strcmp(event, "create")) put(request, BOOTSTRAPPING);
        else if (!strcmp(event, "metadata")) metadata(request);
        else if (!strcmp(event, "abort_notice")) abort_notice(request);
        else if (!strcmp(event, "abort")) abort_request(request);
        else if (!strcmp(event, "start")) answer = start(request) ? "true" : "false";
        else if (!strcmp(event, "finish")) finish(request, chunk, *last == 't', *ok == 't');
        else if (!strcmp(event, "poll")) answer = NAMES[poll(request)];
        else if (!strcmp(event, "clear")) clear(request);
        else return fprintf(stderr, "no such event: %s", line), 1;
        printf("{\"status\":%s", NAMES[room->status]);
        if (answer) printf(",\"answer\":%s", answer);
        printf(",\"released\":[%s],\"told\":[%s]}\n", released, told);
        fflush(stdout);
    }
}
