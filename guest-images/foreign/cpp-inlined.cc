// cpp-inlined: C++ with inlined calls, a virtual call, namespaces and templates.
//
//   main -> bench::drive<3u> -> Multiplier::apply / Shifter::apply (virtual) -> mix::rounds<N> (inlined) -> mix::step (inlined)
//
// The two virtual functions take equal turns by the thread's CPU clock. Use: cpp-inlined [SECONDS]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <time.h>
#include <vector>

namespace clocks {
double read(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
} // namespace clocks

namespace mix {
__attribute__((always_inline)) inline uint64_t step(uint64_t state, unsigned by) {
    state ^= state << by;
    state ^= state >> 7;
    asm volatile("" : "+r"(state));
    return state ^ state << 17;
}

template <unsigned By> __attribute__((always_inline)) inline uint64_t rounds(uint64_t state) {
    for (int i = 0; i < 20000; ++i) {
        state = step(state, By);
    }
    return state;
}
} // namespace mix

namespace bench {
class Work {
  public:
    virtual ~Work() = default;
    virtual uint64_t apply(uint64_t state) = 0;
    virtual std::string name() const = 0;
    double used = 0;
};

class Multiplier final : public Work {
  public:
    __attribute__((noinline)) uint64_t apply(uint64_t state) override { return mix::rounds<13>(state); }
    std::string name() const override { return "bench::Multiplier::apply"; }
};

class Shifter final : public Work {
  public:
    __attribute__((noinline)) uint64_t apply(uint64_t state) override { return mix::rounds<11>(state); }
    std::string name() const override { return "bench::Shifter::apply"; }
};

// One turn of each until it has used `due` seconds in all.
template <unsigned Slices>
__attribute__((noinline)) uint64_t drive(std::vector<std::unique_ptr<Work>> &all, double due, uint64_t state) {
    for (auto &work : all) {
        while (work->used < due) {
            double start = clocks::read(CLOCK_THREAD_CPUTIME_ID);
            for (unsigned i = 0; i < Slices; ++i) {
                state = work->apply(state);
            }
            work->used += clocks::read(CLOCK_THREAD_CPUTIME_ID) - start;
        }
    }
    return state;
}
} // namespace bench

int main(int argc, char **argv) {
    double deadline = clocks::read(CLOCK_MONOTONIC) + (argc > 1 ? atof(argv[1]) : 10.0);
    std::vector<std::unique_ptr<bench::Work>> all;
    all.push_back(std::make_unique<bench::Multiplier>());
    all.push_back(std::make_unique<bench::Shifter>());
    uint64_t state = 1;
    for (double due = 0.01; clocks::read(CLOCK_MONOTONIC) < deadline; due += 0.01) {
        state = bench::drive<3>(all, due, state);
    }
    for (const auto &work : all) {
        printf("%s used %.6f s\n", work->name().c_str(), work->used);
    }
    return state == 0;
}
