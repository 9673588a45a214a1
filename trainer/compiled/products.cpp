// Products of small matrices in fp32 on one thread, as two operators. Each or in stacks:
// pipegap::product(a […, m, k], b […, k, n]) → […, m, n]. And by groups, as experts multiply; the
// rows of group g lie before row ends[g] and behind those of the group before it:
// pipegap::grouped(a [rows, k], b [groups, k, n], ends [groups]) → [rows, n], each row by the matrix
// of its group, and (a [m, rows], b [rows, n], ends [groups]) → [groups, m, n], each the sum over
// the rows of a group.
//
// The libraries behind torch.mm pay off for larger matrices, and MKL takes kernels of AVX2 where
// the processor is AMD's, whatever it could do. The algorithm is Goto and van de Geijn's (ACM TOMS
// 34.3, 2008) without its outer loops: a tile of the result stays in registers while it sums over
// a panel of b, which lies in a cache. Each entry is summed in order of k, so that no bit of it
// depends on the other rows and columns of the product.

#if defined(__AVX512F__)
#define CPU_CAPABILITY AVX512
#define CPU_CAPABILITY_AVX512
#elif defined(__AVX2__)
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#endif
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

namespace {

using Vector = at::vec::Vectorized<float>;
constexpr int64_t WIDTH = Vector::size();
// Vectors and rows of a tile: accumulators, the vectors of b and one entry of a fit the registers.
constexpr int VECTORS = WIDTH == 8 ? 2 : 4;
constexpr int ROWS = 6;
constexpr int64_t COLUMNS = VECTORS * WIDTH;
constexpr int64_t DEPTH = 256; // of a panel: 64 KB at most, half of a small second cache

struct Matrix {
  const float* entries;
  int64_t row, column; // strides
  const float* at(int64_t i, int64_t j) const { return entries + i * row + j * column; }
  Matrix from(int64_t i, int64_t j) const { return {at(i, j), row, column}; }
};

struct Result {
  float* entries;
  int64_t row; // stride; that of columns is 1
  int64_t columns;
  bool holds_a_sum; // of smaller k, which is added to
};

template <int rows, int vectors>
void tile(int64_t depth, Matrix a, const float* panel, Result c) {
  Vector sums[rows][vectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = Vector(0.f);
  for (int64_t k = 0; k < depth; ++k, panel += vectors * WIDTH)
    for (int i = 0; i < rows; ++i)
      for (int v = 0; v < vectors; ++v)
        sums[i][v] = at::vec::fmadd(
            Vector(*a.at(i, k)), Vector::loadu(panel + v * WIDTH), sums[i][v]);
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v) {
      float* place = c.entries + i * c.row + v * WIDTH;
      const int64_t count = std::min(WIDTH, c.columns - v * WIDTH);
      if (c.holds_a_sum) sums[i][v] = sums[i][v] + Vector::loadu(place, count);
      sums[i][v].store(place, count);
    }
}

// All rows of the result: tiles of `rows` rows, then smaller ones.
template <int rows, int vectors>
void tiles(int64_t num_rows, int64_t depth, Matrix a, const float* panel, Result c) {
  for (; num_rows >= rows; num_rows -= rows) {
    tile<rows, vectors>(depth, a, panel, c);
    a.entries += rows * a.row;
    c.entries += rows * c.row;
  }
  if constexpr (rows > 1) tiles<rows - 1, vectors>(num_rows, depth, a, panel, c);
}

template <int vectors = VECTORS>
void tiles_of(int64_t num_rows, int64_t depth, Matrix a, const float* panel, Result c) {
  if constexpr (vectors > 1)
    if (c.columns <= (vectors - 1) * WIDTH)
      return tiles_of<vectors - 1>(num_rows, depth, a, panel, c);
  tiles<ROWS, vectors>(num_rows, depth, a, panel, c);
}

// Copies b [depth, columns] to [depth, columns rounded up to vectors]; what is beyond it is unused.
void pack(Matrix b, int64_t depth, int64_t columns, float* panel) {
  const int64_t width = (columns + WIDTH - 1) / WIDTH * WIDTH;
  if (b.row == 1 && b.column != 1)
    return at::vec::transpose_mxn<float>(b.entries, b.column, panel, width, columns, depth);
  for (int64_t k = 0; k < depth; ++k)
    std::copy_n(b.at(k, 0), columns, panel + k * width);
}

void multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, float* c) {
  alignas(64) static thread_local float panel[DEPTH * COLUMNS];
  for (int64_t column = 0; column < n; column += COLUMNS)
    for (int64_t done = 0; done < k; done += DEPTH) {
      const int64_t depth = std::min(DEPTH, k - done), columns = std::min(COLUMNS, n - column);
      pack(b.from(done, column), depth, columns, panel);
      tiles_of(m, depth, a.from(0, done), panel, {c + column, n, columns, done > 0});
    }
}

Matrix matrix(const at::Tensor& stack, int64_t number) {
  const int64_t offset = stack.dim() == 3 ? number * stack.stride(0) : 0;
  return {stack.const_data_ptr<float>() + offset, stack.stride(-2), stack.stride(-1)};
}

at::Tensor packable(const at::Tensor& b) {
  return b.stride(-1) == 1 || b.stride(-2) == 1 ? b : b.contiguous();
}

at::Tensor product(const at::Tensor& a, const at::Tensor& given) {
  TORCH_CHECK(
      a.dim() == given.dim() && (a.dim() == 2 || (a.dim() == 3 && a.size(0) == given.size(0))),
      "product takes two matrices or two stacks of as many");
  TORCH_CHECK(a.size(-1) == given.size(-2), "product of matrices whose inner sizes differ");
  const at::Tensor b = packable(given);
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), stacked = a.dim() == 3 ? a.size(0) : 1;
  at::Tensor c = a.dim() == 3 ? at::empty({stacked, m, n}, a.options()) : at::empty({m, n}, a.options());
  if (k == 0) c.zero_(); // else no tile writes it
  for (int64_t i = 0; i < stacked; ++i)
    multiply(m, n, k, matrix(a, i), matrix(b, i), c.mutable_data_ptr<float>() + i * m * n);
  return c;
}

at::Tensor grouped(const at::Tensor& a, const at::Tensor& given, const at::Tensor& ends) {
  const bool is_sum = given.dim() == 2;
  TORCH_CHECK(
      a.dim() == 2 && ends.dim() == 1 && ends.scalar_type() == at::kInt && ends.is_contiguous() &&
          (is_sum || (given.dim() == 3 && given.size(0) == ends.size(0))),
      "grouped takes a matrix, a matrix or a stack of one per group, and int32 ends");
  TORCH_CHECK(a.size(1) == given.size(-2), "grouped: matrices whose inner sizes differ");
  const at::Tensor b = packable(given);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(-1), groups = ends.size(0);
  at::Tensor c = is_sum ? at::empty({groups, m, n}, a.options()) : at::empty({m, n}, a.options());
  if (k == 0) c.zero_();
  const int32_t* end = ends.const_data_ptr<int32_t>();
  float* out = c.mutable_data_ptr<float>();
  int64_t begin = 0;
  for (int64_t g = 0; g < groups; begin = end[g++]) {
    const int64_t rows = end[g] - begin;
    TORCH_CHECK(rows >= 0 && end[g] <= (is_sum ? k : m), "grouped: ends that do not ascend");
    if (!is_sum)
      multiply(rows, n, k, matrix(a, 0).from(begin, 0), matrix(b, g), out + begin * n);
    else if (rows > 0)
      multiply(m, n, rows, matrix(a, 0).from(0, begin), matrix(b, 0).from(begin, 0), out + g * m * n);
    else
      std::fill_n(out + g * m * n, m * n, 0.f);
  }
  TORCH_CHECK(begin == (is_sum ? k : m), "grouped: rows behind the last end");
  return c;
}

} // namespace

TORCH_LIBRARY(pipegap, library) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag, at::Tag::flexible_layout};
  library.def("product(Tensor a, Tensor b) -> Tensor", tags);
  library.def("grouped(Tensor a, Tensor b, Tensor ends) -> Tensor", tags);
}

TORCH_LIBRARY_IMPL(pipegap, CPU, library) {
  library.impl("product", product);
  library.impl("grouped", grouped);
}
