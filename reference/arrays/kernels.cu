// What many threads do to many rooms at once: a thread an event, no locks, no order among threads.
//
// kernels.py launches each kernel and has its NumPy twin, its shapes and what it takes for granted. An array has an
// element an event; one whose name ends in _of has one a room. The PTX of this file is proved to do what the spec's
// merge does (proofs/ptx/kernels.py); nothing here is derived from the spec.

enum Status { Failed, Bootstrapping, WaitingForInput, Transferring, Success, Absent };

using Byte = unsigned char;
using Word = unsigned long long;

// The event of this thread. 64 bits: a product of 32-bit numbers wraps at four billion events.
__device__ long long this_event() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

// A word that other threads change meanwhile: a volatile load is a relaxed one, a plain load may be merged or cached.
template <typename T> __device__ T look(const T *word) { return *(const volatile T *)word; }

__device__ int first_terminal_wins(int current, int incoming) {
    if (current == Failed || current == Success) return current;
    if (current == Absent || incoming == Failed) return incoming;
    return max(current, incoming);
}

// Each event writes its status; `stands` is what the table says right after, be it this write or an older one.
extern "C" __global__ void write_status(int *status_of, const int *__restrict__ room,
                                        const Byte *__restrict__ incoming, Byte *__restrict__ stands,
                                        long long events) {
    long long i = this_event();
    if (i >= events) return;
    int *word = &status_of[room[i]];
    int seen = look(word), next;
    while ((next = first_terminal_wins(seen, incoming[i])) != seen) {
        int before = atomicCAS(word, seen, next);
        if (before == seen) break;
        seen = before;  // somebody else was quicker: merge into what they wrote
    }
    stands[i] = next;
}

// The order of first-terminal-wins as an order of numbers: a terminal status above every live one, and an earlier one
// above a later one; live statuses by themselves. So a fold in order is a maximum in any order. 0 is Absent.
__device__ Word stamp(long long position, int incoming) {
    bool terminal = incoming == Failed || incoming == Success;
    return terminal ? ((1ULL << 60) - position) << 3 | incoming : incoming;
}

// The key of each room becomes that of its last status, had the events come one by one at positions start + 1, ...
extern "C" __global__ void fold_statuses(Word *key_of, const int *__restrict__ room,
                                         const Byte *__restrict__ incoming, long long start, long long events) {
    long long i = this_event();
    if (i >= events) return;
    Word *word = &key_of[room[i]];
    Word key = stamp(start + i + 1, incoming[i]);
    if (look(word) < key) atomicMax(word, key);  // keys only grow, so a look saves most atomics of a busy room
}

// For each room and status the first position at which the status comes: five numbers that tell the status at any time.
extern "C" __global__ void first_occurrence(Word *first_of, const int *__restrict__ room,
                                            const Byte *__restrict__ incoming, long long start, long long events) {
    long long i = this_event();
    if (i >= events) return;
    Word *word = &first_of[5LL * room[i] + incoming[i]];
    Word position = start + i + 1;
    if (position < look(word)) atomicMin(word, position);
}

// Of a log whose events stand grouped by room, each with the status observed after it: the first position in each room
// where that is not what the merge gives. What was observed before is right, or it is itself the first that is wrong.
extern "C" __global__ void check_log(Word *violation_of, const int *__restrict__ before_of,
                                     const int *__restrict__ room, const Byte *__restrict__ incoming,
                                     const Byte *__restrict__ observed, long long start, long long events) {
    long long i = this_event();
    if (i >= events) return;
    bool first = i == 0 || room[i - 1] != room[i];
    int current = first ? before_of[room[i]] : observed[i - 1];
    if (observed[i] == first_terminal_wins(current, incoming[i])) return;
    atomicMin(&violation_of[room[i]], (Word)(start + i + 1));
}
