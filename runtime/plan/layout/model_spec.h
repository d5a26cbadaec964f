// What a model consists of: ordered FSDP units, each with named parameters. Built by
// models/, an immutable value.
//
// Invariants (checked by ValidateModelSpec): unit and parameter names are unique, dims positive,
// padded_rows >= dims[0].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

enum class InitKind { kNormal, kOnes, kZeros };

// Which row of the precision policy a parameter follows.
enum class ParamKind { kMatrix, kNorm };

struct ParamSpec {
  std::string name;           // unique in the model: "h.0.attn.qkv.weight"
  std::vector<int64_t> dims;  // logical shape, 1-D or 2-D [out, in]
  int64_t padded_rows = 0;    // rows stored (>= dims[0]); rows beyond dims[0] are zero for ever
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
  bool decay = false;  // weight decay applies
  ParamKind kind = ParamKind::kMatrix;

  int64_t numel() const { return dims.size() == 2 ? dims[0] * dims[1] : dims[0]; }
  int64_t stored_numel() const { return dims.size() == 2 ? padded_rows * dims[1] : padded_rows; }
  bool operator==(const ParamSpec&) const = default;
};

// What a unit is to the planner. Blocks take turns in the slots of the bucket pool and may be
// computed again; the first and the last unit do not.
enum class UnitRole { kEmbedding, kBlock, kHead };

struct UnitSpec {
  std::string name;  // "embed", "h.0", "head"; a label: nothing depends on its text
  std::vector<ParamSpec> params;
  // kBlock: a transformer block, or several merged into one unit.
  UnitRole role = UnitRole::kBlock;
  bool operator==(const UnitSpec&) const = default;
};

struct ModelSpec {
  std::string family;
  std::vector<UnitSpec> units;
  int64_t vocab = 0, padded_vocab = 0, seq_len = 0, d_model = 0, layers = 0, heads = 0,
          kv_heads = 0, head_dim = 0, ffn = 0;

  bool operator==(const ModelSpec&) const = default;
};

// Error(kInternal) naming the unit or parameter that breaks an invariant above.
void ValidateModelSpec(const ModelSpec& spec);
std::string ToString(const ModelSpec& spec);

}  // namespace millrace
