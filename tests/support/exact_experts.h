// Stand-ins for what is not linear in a mixture of experts, for exact_kernels.h. Products of the
// experts and all that moves rows are the real ones.
//   router       given by the row's logits, integers z: h = sum of (e + 1) z[e], ids[k] = (h + k)
//                modulo E, weights[k] = 2 for odd h + k, else 1
//                d_logits[ids[k]] = m(d_weights[k]), else 0
//   activations  of live slots, times their weight w: relu2 w m(x), swiglu w m(g) m(u + 1);
//                d_x of relu2 w m(d_out), of swiglu w m(u + 1) m(d_out) and w m(g) m(d_out);
//                d_weights = sum of act d_out
#pragma once

#include "kernels/ops/kernel_table.h"

namespace millrace::test {

void SetExactExperts(KernelTable& table);

}  // namespace millrace::test
