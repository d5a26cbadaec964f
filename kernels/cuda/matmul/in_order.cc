#include "kernels/cuda/matmul/in_order.h"

#include "kernels/cuda/moe/grouped_launch.h"

namespace millrace::cuda {

void LaunchInOrderTiles(const InOrderArgs& args, unsigned* ticket, const Launch& launch) {
  GroupedArgs g;
  g.a = {args.a.data, args.a.stride, 1, 0};
  g.b = {args.b.data, args.b.stride, 1, 0};
  g.out = args.out.data;
  g.out_row = args.out.stride;
  g.out_bf16 = true;
  g.bias = args.bias.data;
  g.experts = 1;
  g.m = args.rows, g.n = args.columns, g.k = args.depth;
  LaunchGroupedWgmma<Slots::kRows, false>(g, args.rows, ticket, launch);
}

bool HasInOrder(int major, int minor) { return major == 9 && minor == 0 && HasGroupedWgmma(); }

}  // namespace millrace::cuda
