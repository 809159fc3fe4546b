// What many threads do to many rooms at once: a thread an event, no locks, no order among threads.
//
// kernels.py launches each kernel and has its NumPy twin, its shapes and what it takes for granted. An array has an
// element an event; one whose name ends in _of has one a room, and a table has one a cell. The PTX of this file is
// proved to do what the spec does (proofs/ptx/kernels.py); nothing here is derived from the spec.

enum Status { Failed, Bootstrapping, WaitingForInput, Transferring, Success, Absent, Tombstone, Nothing };

using Byte = unsigned char;

enum Read { Now = 7 };                                  // a write that reads as it stores
enum Cell { Keep = 255 };                               // of a merge: nothing is stored
enum Mark { Cleared = 32, Again = 128, Suspect = 256 };  // the lower eight are a room's history

// The event of this thread. 64 bits: a product of 32-bit numbers wraps at four billion events.
__device__ long long this_event() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

// A word that other threads change meanwhile: a volatile load is a relaxed one, a plain load may be merged or cached.
template <typename T> __device__ T look(const T *word) { return *(const volatile T *)word; }

// An entry is one word, so that one compare-and-swap writes all of it: in its lowest byte the status, above that the
// request that it belongs to (with tombstones, else 0), above that the first terminal status that it has had.
__device__ unsigned stored(unsigned entry, const Byte *merge, unsigned read, unsigned incoming, unsigned request,
                           bool tombstones) {
    unsigned status = entry & 255, stamp = entry >> 8 & 255, first = entry >> 16;
    unsigned merged = merge[5 * (read == Now ? status : read) + incoming];
    if (merged == Keep) return entry;
    if (tombstones && (request < stamp || (request == stamp && status == Tombstone))) return entry;
    if (first == Nothing && (merged == Failed || merged == Success)) first = merged;
    return merged | (tombstones ? request : stamp) << 8 | first << 16;
}

// Each event writes a status; `stands` is what the entry says right after, be it this write or an older one.
extern "C" __global__ void write_entry(unsigned *entry_of, const Byte *__restrict__ merge,
                                       const int *__restrict__ room, const Byte *__restrict__ read,
                                       const Byte *__restrict__ incoming, const Byte *__restrict__ request,
                                       Byte *__restrict__ stands, long long tombstones, long long events) {
    long long i = this_event();
    if (i >= events) return;
    unsigned *word = &entry_of[room[i]];
    unsigned seen = look(word), next;
    while ((next = stored(seen, merge, read[i], incoming[i], request[i], tombstones)) != seen) {
        unsigned before = atomicCAS(word, seen, next);
        if (before == seen) break;
        seen = before;  // somebody else was quicker: merge into what they wrote
    }
    stands[i] = next;
}

// Of a log whose events stand grouped by room: what the screen (reference/logs/rooms.py) remembers of each room. An
// event is held against the state that the one before it left; only the first of a room needs what was known before.
extern "C" __global__ void mark_rooms(unsigned *marks_of, const Byte *__restrict__ state_of,
                                      const Byte *__restrict__ left, const Byte *__restrict__ suspicious,
                                      const Byte *__restrict__ again, const Byte *__restrict__ clears,
                                      const int *__restrict__ room, const Byte *__restrict__ code,
                                      long long looked, long long events) {
    long long i = this_event();
    if (i >= events) return;
    bool first = i == 0 || room[i - 1] != room[i];
    unsigned before = first ? state_of[room[i]] : left[code[i - 1]];
    unsigned marks = before & (unsigned)looked;
    if (before & suspicious[code[i]]) marks |= Suspect;
    if (before & again[code[i]]) marks |= Again;
    if (clears[code[i]]) marks |= Cleared;
    unsigned *word = &marks_of[room[i]];
    if ((look(word) & marks) != marks) atomicOr(word, marks);  // marks only grow, so a look saves most atomics
}
