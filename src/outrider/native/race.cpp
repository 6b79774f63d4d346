// Which tokens can win a race of exponentials (noise.py): all but those that are sure to lose, without their logarithms.

#include "lanes.h"

namespace {

constexpr float SURE = 1.0f - 1e-5f;  // what a score may be off by, so that no winner is ever left out

inline uint64_t mixed(uint64_t x) {  // SplitMix64's finaliser, as in noise.py
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

inline float uniform(uint64_t base, uint64_t id) {
    const uint64_t x = mixed(id * 0x9E3779B97F4A7C15ull + base);
    return std::min(float((double(x >> 11) + 0.5) * 0x1p-53), 1.0f - 0x1p-24f);
}

}  // namespace

// Ids that may have the largest p / -log(1 - u), rising, into `out`; how many. As -log(1 - u) >= u, a token whose p / u
// is no more than the best score so far has lost.
extern "C" int64_t contenders(const float* probs, int64_t size, uint64_t base, int64_t* out) {
    float best = 0.0f;
    int64_t count = 0;
    for (int64_t id = 0; id < size; ++id) {
        const float p = probs[id];
        if (!(p > 0.0f)) continue;
        const float u = uniform(base, id);
        if (p < best * u) continue;
        out[count++] = id;
        best = std::max(best, p / -std::log1p(-u) * SURE);
    }
    return count;
}
