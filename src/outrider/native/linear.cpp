// y = x W^T + b for the few rows of a verification pass, with weights in float32, bfloat16 or int8.
//
// A pass over a few rows waits for the weights, so they are read once, in order, and as narrow as they are stored; rows
// beyond the first cost arithmetic only. Outputs lie side by side in panels. A row's sums run over the inputs in order,
// each in its own accumulator, so a row never depends on those beside it. int8 sums are exact integers.

#include "lanes.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int64_t WIDE = 16;
#else
constexpr int64_t WIDE = 8;
#endif
typedef float wide __attribute__((vector_size(WIDE * 4)));
constexpr int64_t PANEL = 2 * WIDE;   // outputs side by side
constexpr int64_t DEPTH = 128;        // inputs whose weights stay in the innermost cache while all rows use them
constexpr int64_t TILE = 6;           // rows whose sums fit the registers
constexpr int64_t ROWS = 48;          // rows whose inputs stay in the second cache

// Keeps a value in a register: GCC would rather read weights anew for each row, and the loads then cost more than the sums.
#if defined(__AVX2__)
#define HELD(x) asm("" : "+v"(x))
#else
#define HELD(x)
#endif

// The weights of one input for a panel's outputs. Two bfloat16 share a word: output o below, output o + WIDE above.
inline void weights_at(const float* from, wide* two) {
    std::memcpy(two, from, sizeof(wide));
    std::memcpy(two + 1, from + WIDE, sizeof(wide));
}
inline void weights_at(const bf16* from, wide* two) {
    typedef uint32_t words __attribute__((vector_size(WIDE * 4)));
    words pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    const words below = pairs << 16, above = pairs & 0xffff0000u;
    std::memcpy(two, &below, sizeof below);
    std::memcpy(two + 1, &above, sizeof above);
}
inline int64_t place_of(int64_t o, float) { return o; }
inline int64_t place_of(int64_t o, bf16) { return o < WIDE ? 2 * o : 2 * (o - WIDE) + 1; }

// sums[R][PANEL] += x[R][depth] * weights[depth][PANEL]; the weights that come next are called for on the way.
template <typename W, int R>
void tile(const W* weights, const float* x, int64_t stride, int64_t depth, float* sums, const char* next, int64_t pace) {
    wide some[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) std::memcpy(&some[r][half], sums + (2 * r + half) * WIDE, sizeof(wide));
    for (int64_t k = 0; k < depth; ++k) {
        wide two[2];
        weights_at(weights + k * PANEL, two);
        HELD(two[0]);
        HELD(two[1]);
        __builtin_prefetch(next + k * pace);
        for (int r = 0; r < R; ++r) {
            some[r][0] += x[r * stride + k] * two[0];
            some[r][1] += x[r * stride + k] * two[1];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) std::memcpy(sums + (2 * r + half) * WIDE, &some[r][half], sizeof(wide));
}

// The same for any number of rows, in even tiles; each calls for its share of what comes next, so that the memory is
// never idle.
template <typename W>
void tiles(const W* weights, const float* x, int64_t stride, int64_t depth, int64_t rows, float* sums) {
    constexpr decltype(&tile<W, 1>) by_height[] = {nullptr,    tile<W, 1>, tile<W, 2>, tile<W, 3>,
                                                   tile<W, 4>, tile<W, 5>, tile<W, 6>};
    const int64_t all = (rows + TILE - 1) / TILE, pace = PANEL * int64_t(sizeof(W)) / all;
    const char* next = (const char*)(weights + depth * PANEL);
    for (int64_t left = rows, parts = all; left > 0; --parts, next += depth * pace) {
        const int64_t height = (left + parts - 1) / parts, row = rows - left;
        by_height[height](weights, x + row * stride, stride, depth, sums + row * PANEL, next, pace);
        left -= height;
    }
}

inline const float* as_floats(const float* from, float*, int64_t) { return from; }
inline const float* as_floats(const bf16* from, float* room, int64_t count) {
    widen_all(from, room, count);
    return room;
}

// x [rows, in], panels [out / PANEL, in, PANEL], y [rows, out].
template <typename T> void multiply(const T* panels, const T* x, const float* bias, T* y, int64_t rows, int64_t in, int64_t out) {
    std::vector<float> room(sizeof(T) == 4 ? 0 : rows * in);
    const float* inputs = as_floats(x, room.data(), rows * in);
#pragma omp parallel
    {
        std::vector<float> sums(ROWS * PANEL);
#pragma omp for schedule(dynamic, 4)
        for (int64_t panel = 0; panel < (out + PANEL - 1) / PANEL; ++panel)
            for (int64_t row = 0; row < rows; row += ROWS) {
                const int64_t some = std::min(ROWS, rows - row), first = panel * PANEL, count = std::min(PANEL, out - first);
                std::fill(sums.begin(), sums.begin() + some * PANEL, 0.0f);
                for (int64_t k = 0; k < in; k += DEPTH)
                    tiles(panels + (panel * in + k) * PANEL, inputs + row * in + k, in, std::min(DEPTH, in - k), some,
                          sums.data());
                for (int64_t r = 0; r < some; ++r)
                    for (int64_t o = 0; o < count; ++o)
                        narrow(sums[r * PANEL + o] + (bias ? bias[first + o] : 0.0f), y + (row + r) * out + first + o);
            }
    }
}

// weight [count, in] becomes the outputs from number `first` on of panels [out / PANEL, in, PANEL].
template <typename T> void pack(const T* weight, int64_t count, int64_t in, int64_t first, T* panels) {
#pragma omp parallel for
    for (int64_t o = 0; o < count; ++o) {
        T* to = panels + (first + o) / PANEL * in * PANEL + place_of((first + o) % PANEL, T{});
        for (int64_t k = 0; k < in; ++k) to[k * PANEL] = weight[o * in + k];
    }
}

// int8 weights and 16-bit inputs: eight outputs by two inputs fill a register; two such side by side are a panel.
constexpr int64_t EIGHT = 8, PAIR = 2, PANEL8 = 2 * EIGHT, DEPTH8 = 256, TILE8 = 6;

#if defined(__AVX2__)
typedef int32_t sums8 __attribute__((vector_size(32)));
inline void widened(const int8_t* weights, sums8* two) {
    two[0] = (sums8)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)weights));
    two[1] = (sums8)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(weights + EIGHT * PAIR)));
}
inline sums8 add_products(sums8 sums, const int16_t* x, sums8 weights) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (sums8)_mm256_dpwssd_epi32((__m256i)sums, _mm256_set1_epi32(pair), (__m256i)weights);
#elif defined(__AVXVNNI__)
    return (sums8)_mm256_dpwssd_avx_epi32((__m256i)sums, _mm256_set1_epi32(pair), (__m256i)weights);
#else
    sums += (sums8)_mm256_madd_epi16(_mm256_set1_epi32(pair), (__m256i)weights);
    HELD(sums);
    return sums;
#endif
}
#else
struct sums8 {
    int32_t of[EIGHT];  // sums, or pairs of weights
};
inline void widened(const int8_t* weights, sums8* two) {
    for (int64_t o = 0; o < PANEL8; ++o)
        two[o / EIGHT].of[o % EIGHT] = int32_t(weights[o * PAIR]) + int32_t(weights[o * PAIR + 1]) * 65536;
}
inline sums8 add_products(sums8 sums, const int16_t* x, sums8 weights) {
    for (int64_t o = 0; o < EIGHT; ++o) {
        const int16_t low = int16_t(weights.of[o]);
        sums.of[o] += x[0] * low + x[1] * ((weights.of[o] - low) / 65536);
    }
    return sums;
}
#endif

template <int R>
void tile8(const int8_t* weights, const int16_t* x, int64_t stride, int64_t depth, int32_t* sums, const int8_t* next,
           int64_t pace) {
    sums8 some[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) std::memcpy(&some[r][half], sums + (2 * r + half) * EIGHT, sizeof(sums8));
    for (int64_t k = 0; k < depth; k += PAIR) {
        sums8 two[2];
        widened(weights + k * PANEL8, two);
        __builtin_prefetch(next + k * pace);
        for (int r = 0; r < R; ++r) {
            some[r][0] = add_products(some[r][0], x + r * stride + k, two[0]);
            some[r][1] = add_products(some[r][1], x + r * stride + k, two[1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) std::memcpy(sums + (2 * r + half) * EIGHT, &some[r][half], sizeof(sums8));
}
void tiles8(const int8_t* weights, const int16_t* x, int64_t stride, int64_t depth, int64_t rows, int32_t* sums) {
    constexpr decltype(&tile8<1>) by_height[] = {nullptr, tile8<1>, tile8<2>, tile8<3>, tile8<4>, tile8<5>, tile8<6>};
    const int64_t all = (rows + TILE8 - 1) / TILE8, pace = PANEL8 / all;
    const int8_t* next = weights + depth * PANEL8;
    for (int64_t left = rows, parts = all; left > 0; --parts, next += depth * pace) {
        const int64_t height = (left + parts - 1) / parts, row = rows - left;
        by_height[height](weights, x + row * stride, stride, depth, sums + row * PANEL8, next, pace);
        left -= height;
    }
}

inline int64_t whole_pairs(int64_t in) { return (in + PAIR - 1) / PAIR * PAIR; }
inline float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }

template <typename T> float largest(const T* x, int64_t size) {
    float most = 0;
    for (int64_t i = 0; i < size; ++i) most = std::max(most, std::fabs(widen(x[i])));
    return most;
}

// One row to whole steps, as many as keep the sums of `in` products exact; gives the size of a step.
template <typename T> float quantise(const T* x, int64_t in, int16_t* to) {
    const float steps = float(std::min<int64_t>(16383, 2147483647 / (127 * in)));
    const float most = largest(x, in), inverse = most > 0 ? steps / most : 0;
    for (int64_t k = 0; k < in; ++k) to[k] = int16_t(int(rounded(widen(x[k]) * inverse)));
    return most / steps;
}

// x [rows, in], panels [out / PANEL8, in / PAIR, PANEL8, PAIR], scales [out] of the weights, y [rows, out].
template <typename T>
void multiply8(const int8_t* panels, const float* scales, const T* x, const float* bias, T* y, int64_t rows, int64_t in,
               int64_t out) {
    const int64_t stride = whole_pairs(in);
    std::vector<int16_t> inputs(rows * stride);
    std::vector<float> steps(rows);
#pragma omp parallel for if (rows > 4)
    for (int64_t row = 0; row < rows; ++row) steps[row] = quantise(x + row * in, in, inputs.data() + row * stride);
#pragma omp parallel
    {
        std::vector<int32_t> sums(ROWS * PANEL8);
#pragma omp for schedule(dynamic, 8)
        for (int64_t panel = 0; panel < (out + PANEL8 - 1) / PANEL8; ++panel)
            for (int64_t row = 0; row < rows; row += ROWS) {
                const int64_t some = std::min(ROWS, rows - row), first = panel * PANEL8, count = std::min(PANEL8, out - first);
                std::fill(sums.begin(), sums.begin() + some * PANEL8, 0);
                for (int64_t k = 0; k < stride; k += DEPTH8)
                    tiles8(panels + (panel * stride + k) * PANEL8, inputs.data() + row * stride + k, stride,
                           std::min(DEPTH8, stride - k), some, sums.data());
                for (int64_t r = 0; r < some; ++r)
                    for (int64_t o = 0; o < count; ++o) {
                        const float product = float(sums[r * PANEL8 + o]) * (steps[row + r] * scales[first + o]);
                        narrow(product + (bias ? bias[first + o] : 0.0f), y + (row + r) * out + first + o);
                    }
            }
    }
}

// weight [count, in] rounded to int8, an output's largest to 127, as the outputs from number `first` on.
template <typename T>
void pack8(const T* weight, int64_t count, int64_t in, int64_t first, int8_t* panels, float* scales) {
#pragma omp parallel for
    for (int64_t o = 0; o < count; ++o) {
        const float most = largest(weight + o * in, in), inverse = most > 0 ? 127 / most : 0;
        const int64_t at = first + o;
        int8_t* to = panels + at / PANEL8 * whole_pairs(in) * PANEL8 + at % PANEL8 * PAIR;
        for (int64_t k = 0; k < in; ++k)
            to[k / PAIR * PAIR * PANEL8 + k % PAIR] = int8_t(rounded(widen(weight[o * in + k]) * inverse));
        scales[at] = most / 127;
    }
}

}  // namespace

extern "C" {

int64_t panel() { return PANEL; }

#define FOR_TYPE(NAME, T)                                                                                                   \
    void pack_##NAME(const void* weight, int64_t count, int64_t in, int64_t first, void* panels) {                          \
        pack((const T*)weight, count, in, first, (T*)panels);                                                               \
    }                                                                                                                       \
    void multiply_##NAME(const void* panels, const void* x, const float* bias, void* y, int64_t rows, int64_t in,           \
                         int64_t out) {                                                                                     \
        multiply((const T*)panels, (const T*)x, bias, (T*)y, rows, in, out);                                                \
    }                                                                                                                       \
    void pack8_##NAME(const void* weight, int64_t count, int64_t in, int64_t first, int8_t* panels, float* scales) {        \
        pack8((const T*)weight, count, in, first, panels, scales);                                                          \
    }                                                                                                                       \
    void multiply8_##NAME(const int8_t* panels, const float* scales, const void* x, const float* bias, void* y,             \
                          int64_t rows, int64_t in, int64_t out) {                                                          \
        multiply8(panels, scales, (const T*)x, bias, (T*)y, rows, in, out);                                                 \
    }

FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, bf16)

}  // extern "C"
