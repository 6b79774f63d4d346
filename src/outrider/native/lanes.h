// Numbers side by side in a register, the two float types of weights, and what the kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

typedef float lanes __attribute__((vector_size(32)));
typedef int32_t bits __attribute__((vector_size(32)));
constexpr int64_t LANES = 8;

struct bf16 { uint16_t bits; };

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
    const uint32_t word = uint32_t(x.bits) << 16;
    float y;
    std::memcpy(&y, &word, 4);
    return y;
}
inline void narrow(float x, float* y) { *y = x; }
inline void narrow(float x, bf16* y) {  // to the nearest, ties to even
    uint32_t word;
    std::memcpy(&word, &x, 4);
    y->bits = x != x ? 0x7fc0 : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

inline lanes load(const float* from) {
    lanes x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
inline void store(lanes x, float* to) { std::memcpy(to, &x, sizeof x); }
inline lanes spread(float x) { return lanes{} + x; }

// e^x to within a unit in the last place or two; exactly 1 at 0 and exactly 0 below -87.
inline lanes exponential(lanes x) {
    const lanes clamped = x > 88.0f ? spread(88.0f) : (x < -87.0f ? spread(-87.0f) : x);
    const lanes magic = spread(12582912.0f);  // adding it rounds to an integer
    const lanes turns = (clamped * 1.44269504f + magic) - magic;
    const lanes rest = (clamped - turns * 0.693359375f) + turns * 2.12194440e-4f;
    lanes y = spread(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * (rest * rest) + rest + 1.0f;
    const bits exponent = (__builtin_convertvector(turns, bits) + 127) << 23;
    lanes power;
    std::memcpy(&power, &exponent, sizeof power);
    return x < -87.0f ? spread(0.0f) : y * power;
}
inline lanes tangent(lanes x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

template <typename T> void widen_all(const T* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

// The reciprocal root mean square of `size` numbers.
inline float inverse_rms(const float* x, int64_t size, float eps) {
    lanes sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += load(x + i) * load(x + i);
    float sum = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) sum += sums[lane];
    for (; i < size; ++i) sum += x[i] * x[i];
    return 1.0f / std::sqrt(sum / float(size) + eps);
}

}  // namespace
