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

// out = act(first half) * second half, row by row; act 0 is SiLU, 1 the GELU by tanh.
template <typename T> void gate(const T* both, int64_t act, T* out, int64_t rows, int64_t size) {
#pragma omp parallel for collapse(2) if (rows * size > 16384)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t at = 0; at < size; at += LANES) {
            float x[LANES] = {}, y[LANES];
            const T *gates = both + row * 2 * size + at, *ups = gates + size;
            const int64_t count = std::min(LANES, size - at);
            widen_all(gates, x, count);
            const lanes z = load(x);
            store(act ? 0.5f * z * (1.0f + tangent(0.7978845608f * (z + 0.044715f * z * z * z)))
                      : z / (1.0f + exponential(-z)),
                  y);
            for (int64_t i = 0; i < count; ++i) narrow(y[i] * widen(ups[i]), out + row * size + at + i);
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
