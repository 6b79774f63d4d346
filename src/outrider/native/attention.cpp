// Attention over the cache, for one pass over the nodes of a few trees.
//
// A node's result depends on the node alone, to the last bit: sums run over dimensions, then over the tokens of the
// node's own path in order of position, in blocks at fixed positions. What else shares the pass (siblings, other rows,
// the threads at hand) decides only which lane of a register a query sits in, and lanes do not mix.
//
// Queries of one key-value head (groups of heads times nodes) lie side by side in the lanes of a register, so a key is
// read once for all of them. The softmax is the running one of FlashAttention (Dao et al., 2205.14135).

#include <limits>

#include "lanes.h"

namespace {

constexpr int64_t BLOCK = 64;        // keys between two rescalings, counted from position 0
constexpr int64_t LARGEST_HEAD = 256;
constexpr int64_t WIDEST = 3;        // registers of queries that share the reading of a key
constexpr float LOWEST = -1e30f;     // below every score; finite, since -inf minus -inf is no number

}  // namespace

extern "C" {

// One pass: where its nodes lie. Mirrored in __init__.py.
struct Shape {
    int64_t rows, width, heads, kv_heads, size, capacity;
    const int64_t* lengths;  // [rows] committed tokens
    const int32_t* parents;  // [rows, width]; -1 at node 0, -2 at padding
};

// One layer of it. Mirrored in __init__.py.
struct Layer {
    const float *query_norm, *key_norm;  // [size] or null
    int64_t window;                      // 0 sees everything
    float eps, scale, cap;               // cap 0 is none
};

}  // extern "C"

namespace {

// What one thread needs for one group of queries.
struct Room {
    std::vector<float> keys, values, mixed;
    std::vector<lanes> queries, scores, tail;
    std::vector<int32_t> paths, depths;
};

// Scores of `count` keys [count, size] against V registers of queries [size][V].
template <int V> void score(const lanes* queries, const float* keys, int64_t count, int64_t size, lanes* scores) {
    constexpr int K = V == 1 ? 8 : 4;  // keys at a time: enough independent sums to hide the latency
    for (int64_t first = 0; first < count; first += K) {
        const float* key[K];
        for (int k = 0; k < K; ++k) key[k] = keys + std::min(first + k, count - 1) * size;
        lanes sums[K][V] = {};
        for (int64_t d = 0; d < size; ++d)
            for (int k = 0; k < K; ++k)
                for (int v = 0; v < V; ++v) sums[k][v] += key[k][d] * queries[d * V + v];
        for (int k = 0; k < K && first + k < count; ++k)
            for (int v = 0; v < V; ++v) scores[(first + k) * V + v] = sums[k][v];
    }
}

// mixed[0..size) += weight * value of each key, in order; `value(k)` is where the value of key k lies.
template <int R, typename Where> void mix_part(float* mixed, const float* weights, int64_t stride, int64_t count, Where value) {
    lanes sums[R];
    for (int r = 0; r < R; ++r) sums[r] = load(mixed + r * LANES);
    for (int64_t k = 0; k < count; ++k) {
        const float* row = value(k);
        const lanes weight = spread(weights[k * stride]);
        for (int r = 0; r < R; ++r) sums[r] += weight * load(row + r * LANES);
    }
    for (int r = 0; r < R; ++r) store(sums[r], mixed + r * LANES);
}
template <typename Where>
void mix(float* mixed, const float* weights, int64_t stride, int64_t count, int64_t size, Where value) {
    int64_t d = 0;
    for (; d + 8 * LANES <= size; d += 8 * LANES)
        mix_part<8>(mixed + d, weights, stride, count, [&](int64_t k) { return value(k) + d; });
    for (; d < size; d += LANES)
        mix_part<1>(mixed + d, weights, stride, count, [&](int64_t k) { return value(k) + d; });
}

inline const float* as_floats(const float* from, float*, int64_t) { return from; }
inline const float* as_floats(const bf16* from, float* room, int64_t count) {
    widen_all(from, room, count);
    return room;
}

// Attention of `count` queries, from number `first` of those of one key-value head in one row; query number
// node * groups + group. `keys` and `values` are that head's [capacity, size].
template <typename T, int V>
void attend_some(const Shape& s, const Layer& layer, int64_t row, int64_t kv_head, int64_t first, int64_t count,
                 const float* rotated, const T* keys, const T* values, T* out, Room& room) {
    const int64_t groups = s.heads / s.kv_heads, size = s.size, length = s.lengths[row];
    constexpr int64_t L = V * LANES;
    room.queries.assign(size * V, lanes{});
    room.scores.resize(BLOCK * V);
    room.mixed.assign(L * size, 0.0f);
    room.paths.resize(L * s.width);
    room.depths.assign(L, -1);
    const int32_t* parents = s.parents + row * s.width;
    float* queries = reinterpret_cast<float*>(room.queries.data());
    int64_t nodes = 0, deepest = -1, start = std::numeric_limits<int64_t>::max();
    for (int64_t lane = 0; lane < count; ++lane) {
        const int64_t node = (first + lane) / groups, head = kv_head * groups + (first + lane) % groups;
        const float* query = rotated + ((row * s.width + node) * s.heads + head) * size;
        for (int64_t d = 0; d < size; ++d) queries[d * L + lane] = query[d] * layer.scale;
        if (parents[node] < -1) continue;  // padding sees nothing and says nothing
        nodes = std::max(nodes, node + 1);
        int32_t depth = 0;
        for (int32_t up = parents[node]; up >= 0; up = parents[up]) ++depth;
        room.depths[lane] = depth;
        int32_t* path = room.paths.data() + lane * s.width;
        for (int32_t up = int32_t(node), step = depth; step >= 0; --step, up = parents[up]) path[step] = up;
        deepest = std::max<int64_t>(deepest, depth);
        start = std::min(start, layer.window ? std::max<int64_t>(0, length + depth - layer.window + 1) : 0);
    }
    if (deepest < 0) return;

    room.keys.resize(std::max(BLOCK, nodes) * size);
    room.values.resize(std::max(BLOCK, nodes) * size);
    room.tail.resize(nodes * V);
    score<V>(room.queries.data(), as_floats(keys + length * size, room.keys.data(), nodes * size), nodes, size,
             room.tail.data());
    const float* tail = reinterpret_cast<const float*>(room.tail.data());
    std::vector<float> tail_values;
    const float* new_values = as_floats(values + length * size, room.values.data(), nodes * size);
    if (sizeof(T) == 2) {
        tail_values.assign(new_values, new_values + nodes * size);
        new_values = tail_values.data();
    }

    float* scores = reinterpret_cast<float*>(room.scores.data());
    lanes best[V], total[V];
    for (int v = 0; v < V; ++v) best[v] = spread(LOWEST), total[v] = lanes{};
    for (int64_t at = start / BLOCK * BLOCK; at <= length + deepest; at += BLOCK) {
        const int64_t here = std::min(BLOCK, length + deepest + 1 - at);  // positions in this block
        const int64_t old = std::clamp<int64_t>(length - at, 0, here);     // of them committed
        if (old)
            score<V>(room.queries.data(), as_floats(keys + at * size, room.keys.data(), old * size), old, size,
                     room.scores.data());
        for (int64_t lane = 0; lane < L; ++lane) {
            const int64_t depth = room.depths[lane];
            const int32_t* path = room.paths.data() + lane * s.width;
            for (int64_t k = old; k < here; ++k) {
                const int64_t step = at + k - length;
                scores[k * L + lane] = step <= depth ? tail[path[step] * L + lane] : -INFINITY;
            }
        }
        if (layer.cap != 0)
            for (int64_t k = 0; k < here * V; ++k)
                room.scores[k] = layer.cap * tangent(room.scores[k] / layer.cap);
        if (layer.window)
            for (int64_t lane = 0; lane < count; ++lane)
                for (int64_t k = 0; k < here && at + k <= length + room.depths[lane] - layer.window; ++k)
                    scores[k * L + lane] = -INFINITY;
        if (layer.cap != 0)
            for (int64_t lane = 0; lane < L; ++lane)
                for (int64_t k = old; k < here; ++k)
                    if (at + k - length > room.depths[lane]) scores[k * L + lane] = -INFINITY;
        lanes shrink[V];
        for (int v = 0; v < V; ++v) {
            lanes high = best[v];
            for (int64_t k = 0; k < here; ++k) {
                const lanes x = room.scores[k * V + v];
                high = x > high ? x : high;
            }
            shrink[v] = exponential(best[v] - high);
            best[v] = high;
            total[v] *= shrink[v];
            for (int64_t k = 0; k < here; ++k) {
                const lanes weight = exponential(room.scores[k * V + v] - high);
                total[v] += weight;
                room.scores[k * V + v] = weight;
            }
        }
        const float* block = as_floats(values + at * size, room.values.data(), old * size);
        for (int64_t lane = 0; lane < count; ++lane) {
            const int64_t depth = room.depths[lane];
            if (depth < 0) continue;
            float* mixed = room.mixed.data() + lane * size;
            const float factor = shrink[lane / LANES][lane % LANES];
            for (int64_t d = 0; d < size; ++d) mixed[d] *= factor;
            mix(mixed, scores + lane, L, old, size, [&](int64_t k) { return block + k * size; });
            const int32_t* path = room.paths.data() + lane * s.width;
            const int64_t own = std::min(here, length + depth + 1 - at);
            if (own > old)
                mix(mixed, scores + old * L + lane, L, own - old, size, [&](int64_t k) {
                    return new_values + path[at + old + k - length] * size;
                });
        }
    }
    for (int64_t lane = 0; lane < count; ++lane) {
        if (room.depths[lane] < 0) continue;
        const int64_t node = (first + lane) / groups, head = kv_head * groups + (first + lane) % groups;
        T* to = out + ((row * s.width + node) * s.heads + head) * size;
        const float whole = total[lane / LANES][lane % LANES];
        for (int64_t d = 0; d < size; ++d) narrow(room.mixed[lane * size + d] / whole, to + d);
    }
}

// One head of one node: normed if there is a weight, then turned by its position.
template <typename T>
void turn(const T* from, const float* weight, float eps, const float* cosines, const float* sines, int64_t size, float* to) {
    float x[LARGEST_HEAD];
    widen_all(from, x, size);
    if (weight) {
        const float inverse = inverse_rms(x, size, eps);
        for (int64_t d = 0; d < size; ++d) x[d] = x[d] * inverse * weight[d];
    }
    const int64_t half = size / 2;
    for (int64_t d = 0; d < half; ++d) {
        to[d] = x[d] * cosines[d] - x[d + half] * sines[d];
        to[d + half] = x[d + half] * cosines[d + half] + x[d] * sines[d + half];
    }
}

// Queries turned into `rotated`; keys turned, and values, into the cache behind each row's committed ones.
template <typename T>
void place(const Shape& s, const Layer& layer, int64_t node, const T* qkv, const float* cosines, const float* sines, T* keys,
           T* values, float* rotated) {
    const int64_t size = s.size, row = node / s.width, slot = s.lengths[row] + node % s.width;
    const T* from = qkv + node * (s.heads + 2 * s.kv_heads) * size;
    cosines += node * size, sines += node * size;
    for (int64_t head = 0; head < s.heads; ++head)
        turn(from + head * size, layer.query_norm, layer.eps, cosines, sines, size, rotated + (node * s.heads + head) * size);
    from += s.heads * size;
    for (int64_t head = 0; head < s.kv_heads; ++head) {
        float key[LARGEST_HEAD];
        turn(from + head * size, layer.key_norm, layer.eps, cosines, sines, size, key);
        const int64_t to = ((row * s.kv_heads + head) * s.capacity + slot) * size;
        for (int64_t d = 0; d < size; ++d) narrow(key[d], keys + to + d);
        std::memcpy(values + to, from + (s.kv_heads + head) * size, size * sizeof(T));
    }
}

template <typename T>
void attend(const Shape& s, const Layer& layer, const T* qkv, const float* cosines, const float* sines, T* keys, T* values,
            float* rotated, T* out) {
    const int64_t lines = s.heads / s.kv_heads * s.width, most = WIDEST * LANES, parts = (lines + most - 1) / most;
#pragma omp parallel
    {
        Room room;
#pragma omp for
        for (int64_t node = 0; node < s.rows * s.width; ++node)
            place(s, layer, node, qkv, cosines, sines, keys, values, rotated);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < s.rows * s.kv_heads * parts; ++task) {
            const int64_t row = task / parts / s.kv_heads, head = task / parts % s.kv_heads, first = task % parts * most;
            const int64_t count = std::min(most, lines - first), offset = (row * s.kv_heads + head) * s.capacity * s.size;
            const auto some = count <= LANES       ? attend_some<T, 1>
                              : count <= 2 * LANES ? attend_some<T, 2>
                                                   : attend_some<T, 3>;
            some(s, layer, row, head, first, count, rotated, keys + offset, values + offset, out, room);
        }
    }
}

}  // namespace

extern "C" {

#define FOR_TYPE(NAME, T)                                                                                             \
    void attend_##NAME(const Shape* s, const Layer* layer, const void* qkv, const float* cosines, const float* sines, \
                       void* keys, void* values, float* rotated, void* out) {                                         \
        attend(*s, *layer, (const T*)qkv, cosines, sines, (T*)keys, (T*)values, rotated, (T*)out);                    \
    }

FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, bf16)

}  // extern "C"
