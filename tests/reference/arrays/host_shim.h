// CUDA's words for g++, so that the kernels run on CPU threads under its sanitizers: a shim, not a simulator.
//
// usage: program VARIANT/KERNEL EVENTS THREADS < arguments. An argument is a number, or for an array its length and its
// elements; the arrays are printed as they are afterwards, one a line.

#pragma once

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#define __global__
#define __device__

using std::max;
using std::min;

struct Index {
    unsigned x;
};
static thread_local Index blockIdx, threadIdx;
static const Index blockDim{4};

template <typename T> T atomicCAS(T *word, T compared, T value) {
    __atomic_compare_exchange_n(word, &compared, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compared;
}

template <typename T> T atomicMax(T *word, T value) {
    T seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

template <typename T> T atomicMin(T *word, T value) {
    T seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (value < seen && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return seen;
}

template <typename T> T atomicOr(T *word, T value) { return __atomic_fetch_or(word, value, __ATOMIC_RELAXED); }

// A volatile load is a relaxed one in CUDA. g++ reports it to these, if told to (tsan-distinguish-volatile).
extern "C" void __tsan_volatile_read4(void *) {}
extern "C" void __tsan_volatile_read8(void *) {}

inline unsigned long long next_number() {
    unsigned long long number;
    if (std::scanf("%llu", &number) != 1) std::exit(98);
    return number;
}

// One argument of a kernel: an array on the heap, of just its length, or a number.
template <typename T> struct Argument {
    T number;
    void read() { number = static_cast<T>(next_number()); }
    T value() { return number; }
    void print() {}
};

template <typename T> struct Argument<T *> {
    std::vector<std::remove_const_t<T>> elements;
    void read() {
        elements.resize(next_number());
        for (auto &element : elements) element = static_cast<std::remove_const_t<T>>(next_number());
    }
    T *value() { return elements.data(); }
    void print() {
        for (auto element : elements) std::printf("%llu ", static_cast<unsigned long long>(element));
        std::printf("\n");
    }
};

// Run a kernel on CPU threads, which take the GPU's threads in turn; the last block is a full one.
template <typename... Parameters> int launch(void (*kernel)(Parameters...), unsigned events, unsigned threads) {
    std::tuple<Argument<Parameters>...> arguments;
    std::apply([](auto &...argument) { (argument.read(), ...); }, arguments);
    std::barrier start(threads);
    const unsigned lanes = (events + blockDim.x - 1) / blockDim.x * blockDim.x;
    std::vector<std::thread> running;
    for (unsigned thread = 0; thread < threads; ++thread) {
        running.emplace_back([&, thread] {
            start.arrive_and_wait();
            for (unsigned lane = thread; lane < lanes; lane += threads) {
                blockIdx.x = lane / blockDim.x;
                threadIdx.x = lane % blockDim.x;
                std::apply([&](auto &...argument) { kernel(argument.value()...); }, arguments);
            }
        });
    }
    for (auto &thread : running) thread.join();
    std::apply([](auto &...argument) { (argument.print(), ...); }, arguments);
    return 0;
}
