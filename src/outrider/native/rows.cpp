// Norms and gates, row by row.

#include "lanes.h"

namespace {

// x += delta where there is one, then out = x / rms(x) * weight.
template <typename T>
void norm(T* x, const T* delta, const float* weight, float eps, T* out, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > 32768)
    for (int64_t row = 0; row < rows; ++row) {
        std::vector<float> line(size);
        T* from = x + row * size;
        if (delta)
            for (int64_t i = 0; i < size; ++i) narrow(widen(from[i]) + widen(delta[row * size + i]), from + i);
        widen_all(from, line.data(), size);
        const float inverse = inverse_rms(line.data(), size, eps);
        for (int64_t i = 0; i < size; ++i) narrow(line[i] * inverse * weight[i], out + row * size + i);
    }
}

inline lanes activated(lanes x, int64_t act) {
    return act ? 0.5f * x * (1.0f + tangent(0.7978845608f * (x + 0.044715f * x * x * x))) : x / (1.0f + exponential(-x));
}

// out = act(first half) * second half, row by row; act 0 is SiLU, 1 the GELU by tanh.
template <typename T> void gate(const T* both, int64_t act, T* out, int64_t rows, int64_t size) {
    constexpr int64_t PART = 256;
#pragma omp parallel for collapse(2) if (rows * size > 4096)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t at = 0; at < size; at += PART) {
            float gates[PART] = {};
            const int64_t count = std::min(PART, size - at);
            const T *from = both + row * 2 * size + at, *ups = from + size;
            T* to = out + row * size + at;
            widen_all(from, gates, count);
            for (int64_t i = 0; i < count; i += LANES) store(activated(load(gates + i), act), gates + i);
            for (int64_t i = 0; i < count; ++i) narrow(gates[i] * widen(ups[i]), to + i);
        }
}

}  // namespace

extern "C" {

#define FOR_TYPE(NAME, T)                                                                                                 \
    void norm_##NAME(void* x, const void* delta, const float* weight, float eps, void* out, int64_t rows, int64_t size) { \
        norm((T*)x, (const T*)delta, weight, eps, (T*)out, rows, size);                                                   \
    }                                                                                                                     \
    void gate_##NAME(const void* both, int64_t act, void* out, int64_t rows, int64_t size) {                              \
        gate((const T*)both, act, (T*)out, rows, size);                                                                   \
    }

FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, bf16)

}  // extern "C"
