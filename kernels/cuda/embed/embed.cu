#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/embed/embed_launch.h"
#include "kernels/cuda/flat.cuh"
#include "runtime/base/cuda/launch.cuh"

namespace millrace::cuda {
namespace {

// out[b*T+t] = table[token] (+ positions[t]), packs of eight; two per thread, far apart.
constexpr int kUnroll = 2;

template <Elements E>
__global__ void __launch_bounds__(kFlatThreads) EmbedKernel(const EmbedArgs a) {
  BeginKernel();
  const int64_t parity = a.tokens.scalars->token_parity * a.tokens.parity_stride;
  int64_t row[kUnroll];
  int column[kUnroll], t[kUnroll], token[kUnroll], start[kUnroll];
  bool inside[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t pack = (blockIdx.x * kUnroll + u) * kFlatThreads + threadIdx.x;
    inside[u] = pack < a.packs;
    const uint32_t r = a.row_packs.Quotient(pack), at = a.first + r, b = a.length.Quotient(at);
    row[u] = r;
    column[u] = static_cast<int>(pack - r * a.row_packs.divisor) * kPack;
    t[u] = static_cast<int>(at - b * a.length.divisor);
    start[u] = static_cast<int>(a.start[b % 2]);
    if (a.documents != nullptr && inside[u]) start[u] = -a.documents[at];
    token[u] =
        inside[u]
            ? max(a.tokens.data[parity + b * a.tokens.batch_stride + t[u] * a.tokens.length_stride],
                  0)
            : 0;
  }
  Raw<E> value[kUnroll], position[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (!inside[u]) continue;
    const int left = a.columns - column[u];
    value[u] = LoadRaw<E>(a.table, token[u] * a.table.stride + column[u], left);
    if (a.positions.data != nullptr)
      position[u] =
          LoadRaw<E>(a.positions, (t[u] + start[u]) * a.positions.stride + column[u], left);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (!inside[u]) continue;
    Floats sum = ToFloats<E>(a.table, value[u]);
    if (a.positions.data != nullptr) {
      const Floats more = ToFloats<E>(a.positions, position[u]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum.v[i] = __fadd_rn(sum.v[i], more.v[i]);
    }
    Store<E>(a.out, row[u] * a.out.stride + column[u], a.columns - column[u], sum);
  }
}

__global__ void __launch_bounds__(kFlatThreads) TakeInputKernel(const TakeInputArgs a) {
  BeginKernel();
  const int64_t r = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  if (r >= a.x.batch * a.x.length) return;
  a.out[r] = a.x.data[a.x.scalars->token_parity * a.x.parity_stride +
                      r / a.x.length * a.x.batch_stride + r % a.x.length * a.x.length_stride];
}

__global__ void __launch_bounds__(kFlatThreads) SelectRowKernel(const SelectRowArgs a) {
  BeginKernel();
  const int64_t c = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  if (c >= a.columns) return;
  const int64_t from = a.scalars->generate_row * a.row_stride + c * a.x_stride,
                to = c * a.out_stride;
  if (a.bytes == 2)
    reinterpret_cast<uint16_t*>(a.out)[to] = reinterpret_cast<const uint16_t*>(a.x)[from];
  else
    reinterpret_cast<uint32_t*>(a.out)[to] = reinterpret_cast<const uint32_t*>(a.x)[from];
}

}  // namespace

void LaunchEmbed(const EmbedArgs& args, Elements elements, const Launch& launch) {
  const auto blocks = static_cast<unsigned>(CeilDiv(args.packs, kFlatThreads * kUnroll));
  WithElements(elements, [&]<Elements E>() {
    LaunchKernel(launch, blocks, kFlatThreads, 0, EmbedKernel<E>, args);
  });
}

void LaunchTakeInput(const TakeInputArgs& args, const Launch& launch) {
  const int64_t rows = args.x.batch * args.x.length;
  if (rows == 0) return;
  LaunchKernel(launch, static_cast<unsigned>(CeilDiv(rows, kFlatThreads)), kFlatThreads, 0,
               TakeInputKernel, args);
}

void LaunchSelectRow(const SelectRowArgs& args, const Launch& launch) {
  if (args.columns == 0) return;
  const auto blocks = static_cast<unsigned>(CeilDiv(args.columns, kFlatThreads));
  LaunchKernel(launch, blocks, kFlatThreads, 0, SelectRowKernel, args);
}

}  // namespace millrace::cuda
