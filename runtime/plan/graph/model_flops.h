// FLOPs that the model asks for, however they are computed: what MFU counts. Recomputation and
// padding do not add to them.
//
// Per token of a training step:  6 * N + attention + scans, where
//   N          parameters that take part in matmuls: weights of the blocks and the output matrix
//              (a tied table counts once, as the output matrix); no table lookups, biases, norms or
//              padded rows; of experts those that a token has
//   attention  causal: 6 * D * T, what a kernel that skips the upper triangle has to do
//                      (llm.c, Megatron);
//              full:  12 * D * T, the whole square (PaLM, appendix B; nanoGPT, torchtitan)
//   scans      21 * I * S for each Mamba-2 mixer of I = heads * head_dim channels and S states: the
//              recurrence, however it is cut into chunks; its convolution is in N
//   D the sum of heads * head_dim over the branches with attention, T sequence length.
// A block that predicts one token further (MTP) has the head's product once more than N has it.
// MFU = FLOPs per token * tokens per second and rank / peak of the compute dtype.
#pragma once

#include <cstdint>

#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/layout/model_spec.h"

namespace millrace {

int64_t Parameters(const ModelSpec& spec);        // logical elements, all of them
int64_t MatmulParameters(const ModelSpec& spec);  // N

// Three times what the nodes of the forward say (NodeDef::flops): a product in the forward is two
// in the backward.
FlopsPerToken TrainFlopsPerToken(const SemanticGraph& forward);

}  // namespace millrace
