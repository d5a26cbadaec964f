#include "models/huggingface/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/policies.h"

namespace millrace {
namespace {

enum class Rows { kAll, kQuery, kKey, kValue, kGate, kUp };
// How rows are stored: as they are; [in, out]; with a dim of 1 between (a depthwise convolution);
// as a tensor for each expert, whose number stands for {}.
enum class Form { kPlain, kTransposed, kDepthwise, kExperts };

struct Entry {
  std::string_view ours, theirs;  // in a block: behind "h.<i>." and behind the block's prefix
  Rows rows = Rows::kAll;
  Form form = Form::kPlain;
};
using Entries = std::vector<Entry>;

struct FamilyTable {
  ModelFamily family;
  // Of everything but the head: absent in folders saved from the bare model.
  std::string_view prefix;
  std::string_view block_prefix;  // before the block's number
  Entries block;
  Entries outside;  // without the head
};

const FamilyTable kGpt2 = {
    ModelFamily::kGpt2,
    "transformer.",
    "h.",
    {{"ln_1.weight", "ln_1.weight"},
     {"ln_1.bias", "ln_1.bias"},
     {"attn.qkv.weight", "attn.c_attn.weight", Rows::kAll, Form::kTransposed},
     {"attn.qkv.bias", "attn.c_attn.bias"},
     {"attn.proj.weight", "attn.c_proj.weight", Rows::kAll, Form::kTransposed},
     {"attn.proj.bias", "attn.c_proj.bias"},
     {"ln_2.weight", "ln_2.weight"},
     {"ln_2.bias", "ln_2.bias"},
     {"mlp.up.weight", "mlp.c_fc.weight", Rows::kAll, Form::kTransposed},
     {"mlp.up.bias", "mlp.c_fc.bias"},
     {"mlp.down.weight", "mlp.c_proj.weight", Rows::kAll, Form::kTransposed},
     {"mlp.down.bias", "mlp.c_proj.bias"}},
    {{"embed/wte", "wte.weight"},
     {"embed/wpe", "wpe.weight"},
     {"ln_f.weight", "ln_f.weight"},
     {"ln_f.bias", "ln_f.bias"}}};

const Entries kLlamaBlock = {{"norm_1.weight", "input_layernorm.weight"},
                             {"attn.qkv.weight", "self_attn.q_proj.weight", Rows::kQuery},
                             {"attn.qkv.weight", "self_attn.k_proj.weight", Rows::kKey},
                             {"attn.qkv.weight", "self_attn.v_proj.weight", Rows::kValue},
                             {"attn.proj.weight", "self_attn.o_proj.weight"},
                             {"norm_2.weight", "post_attention_layernorm.weight"},
                             {"mlp.gate_up.weight", "mlp.gate_proj.weight", Rows::kGate},
                             {"mlp.gate_up.weight", "mlp.up_proj.weight", Rows::kUp},
                             {"mlp.down.weight", "mlp.down_proj.weight"}};
const Entries kQkNorm = {{"attn.q_norm.weight", "self_attn.q_norm.weight"},
                         {"attn.k_norm.weight", "self_attn.k_norm.weight"}};
const Entries kQwen3Experts = {
    {"moe.router.weight", "mlp.gate.weight"},
    {"moe.experts.gate_up.weight", "mlp.experts.{}.gate_proj.weight", Rows::kGate, Form::kExperts},
    {"moe.experts.gate_up.weight", "mlp.experts.{}.up_proj.weight", Rows::kUp, Form::kExperts},
    {"moe.experts.down.weight", "mlp.experts.{}.down_proj.weight", Rows::kAll, Form::kExperts}};
const Entries kNemotronHBlock = {
    {"norm_1.weight", "norm.weight"},
    {"attn.qkv.weight", "mixer.q_proj.weight", Rows::kQuery},
    {"attn.qkv.weight", "mixer.k_proj.weight", Rows::kKey},
    {"attn.qkv.weight", "mixer.v_proj.weight", Rows::kValue},
    {"attn.proj.weight", "mixer.o_proj.weight"},
    {"mlp.up.weight", "mixer.up_proj.weight"},
    {"mlp.down.weight", "mixer.down_proj.weight"},
    {"mamba.in_proj.weight", "mixer.in_proj.weight"},
    {"mamba.conv.weight", "mixer.conv1d.weight", Rows::kAll, Form::kDepthwise},
    {"mamba.conv.bias", "mixer.conv1d.bias"},
    {"mamba.dt_bias", "mixer.dt_bias"},
    {"mamba.a_log", "mixer.A_log"},
    {"mamba.d", "mixer.D"},
    {"mamba.norm.weight", "mixer.norm.weight"},
    {"mamba.out_proj.weight", "mixer.out_proj.weight"},
    {"moe.router.weight", "mixer.gate.weight"},
    {"moe.router.bias", "mixer.gate.e_score_correction_bias"},
    {"moe.experts.up.weight", "mixer.experts.{}.up_proj.weight", Rows::kAll, Form::kExperts},
    {"moe.experts.down.weight", "mixer.experts.{}.down_proj.weight", Rows::kAll, Form::kExperts},
    {"moe.shared.up.weight", "mixer.shared_experts.up_proj.weight"},
    {"moe.shared.down.weight", "mixer.shared_experts.down_proj.weight"}};

Entries Together(std::initializer_list<Entries> lists) {
  Entries all;
  for (const Entries& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Llama's names, with more of them in a block.
FamilyTable LlamaTable(ModelFamily family, std::initializer_list<Entries> more) {
  return {family,
          "model.",
          "layers.",
          Together({kLlamaBlock, Together(more)}),
          {{"embed.weight", "embed_tokens.weight"}, {"norm_f.weight", "norm.weight"}}};
}

const FamilyTable kTables[] = {
    kGpt2,
    LlamaTable(ModelFamily::kLlama, {}),
    LlamaTable(ModelFamily::kQwen3, {kQkNorm}),
    LlamaTable(ModelFamily::kQwen3Moe, {kQkNorm, kQwen3Experts}),
    {ModelFamily::kNemotronH,
     "backbone.",
     "layers.",
     kNemotronHBlock,
     {{"embed.weight", "embeddings.weight"}, {"norm_f.weight", "norm_f.weight"}}}};

constexpr const char* kHead =
    "lm_head.weight";  // the same in all families, and ours; never prefixed

const FamilyTable& TableOf(const ModelSpec& spec) {
  for (const FamilyTable& table : kTables)
    if (Name(table.family) == spec.family) return table;
  MR_FAIL("{} has no Hugging Face names", spec.family);
}

// Rows [first, first + count) of a parameter of a block, or of each expert's part of it.
std::pair<int64_t, int64_t> RowRange(const BlockShape& block, Rows rows, int64_t all) {
  const auto* attention = block.Find<AttentionShape>();
  const int64_t q = attention ? attention->heads * attention->head_dim : 0,
                kv = attention ? attention->kv_heads * attention->head_dim : 0;
  switch (rows) {
    case Rows::kAll:
      return {0, all};
    case Rows::kQuery:
      return {0, q};
    case Rows::kKey:
      return {q, kv};
    case Rows::kValue:
      return {q + kv, kv};
    case Rows::kGate:
      return {0, all / 2};
    case Rows::kUp:
      return {all / 2, all / 2};
  }
  return {0, all};
}

HuggingFaceTensor MakeTensor(const BlockShape& block, const ParamSpec& param, std::string name,
                             const Entry& entry) {
  const auto [first, count] = RowRange(block, entry.rows, param.dims[0]);
  const bool matrix = param.dims.size() == 2;
  HuggingFaceTensor tensor{std::move(name),
                           {count},
                           param.name,
                           first,
                           matrix ? param.dims[1] : 1,
                           entry.form == Form::kTransposed};
  if (!matrix) return tensor;
  const int64_t columns = param.dims[1];
  if (entry.form == Form::kDepthwise)
    tensor.shape = {count, 1, columns};
  else if (tensor.transposed)
    tensor.shape = {columns, count};
  else
    tensor.shape = {count, columns};
  return tensor;
}

// A tensor for each expert of a parameter [E, out, in]; `name` has {} for its number.
void AddExperts(const BlockShape& block, const ParamSpec& param, const std::string& name,
                const Entry& entry, std::vector<HuggingFaceTensor>* tensors) {
  const int64_t out = param.dims.at(1), in = param.dims.at(2);
  const auto [first, count] = RowRange(block, entry.rows, out);
  for (int64_t j = 0; j < param.dims[0]; ++j)
    tensors->push_back({fmt::format(fmt::runtime(name), j),
                        {count, in},
                        param.name,
                        j * out + first,
                        in,
                        /*transposed=*/false});
}

// "h.12.attn.qkv.weight" -> 12 and "attn.qkv.weight"; a parameter outside the blocks -> nothing.
struct BlockName {
  std::string_view number, rest;
};
std::optional<BlockName> SplitBlock(std::string_view name) {
  if (!name.starts_with("h.")) return std::nullopt;
  const size_t dot = name.find('.', 2);
  return BlockName{name.substr(2, dot - 2), name.substr(dot + 1)};
}

size_t BlockNumber(const BlockName& name) {
  size_t number = 0;
  std::from_chars(name.number.data(), name.number.data() + name.number.size(), number);
  return number;
}

std::vector<HuggingFaceTensor> TensorsWithPrefix(const ModelSpec& spec, std::string_view prefix) {
  const FamilyTable& table = TableOf(spec);
  std::vector<HuggingFaceTensor> tensors;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      const size_t before = tensors.size();
      if (param.name == kHead) tensors.push_back(MakeTensor({}, param, kHead, {}));
      const auto block = SplitBlock(param.name);
      for (const Entry& entry : block ? table.block : table.outside) {
        if (entry.ours != (block ? block->rest : std::string_view(param.name))) continue;
        std::string name = block ? fmt::format("{}{}{}.{}", prefix, table.block_prefix,
                                               block->number, entry.theirs)
                                 : fmt::format("{}{}", prefix, entry.theirs);
        const BlockShape shape = block ? spec.blocks.at(BlockNumber(*block)) : BlockShape{};
        if (entry.form == Form::kExperts)
          AddExperts(shape, param, name, entry, &tensors);
        else
          tensors.push_back(MakeTensor(shape, param, std::move(name), entry));
      }
      MR_CHECK_LT(before, tensors.size(), "{} has no Hugging Face name", param.name);
    }
  return tensors;
}

// Buffers that older versions of transformers saved beside the parameters: causal masks, and RoPE
// frequencies, which follow from config.json.
bool IsBuffer(std::string_view name, const FamilyTable& table) {
  if (name.starts_with(table.prefix)) name.remove_prefix(table.prefix.size());
  if (name == "rotary_emb.inv_freq") return table.family != ModelFamily::kGpt2;
  if (!name.starts_with(table.block_prefix)) return false;
  name.remove_prefix(table.block_prefix.size());
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == name.npos) return false;
  name.remove_prefix(digits);
  if (table.family != ModelFamily::kGpt2) return name == ".self_attn.rotary_emb.inv_freq";
  return name == ".attn.bias" || name == ".attn.masked_bias";
}

// The first few of many names: a folder of another model has thousands.
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)), ", "));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// Calls f(stored index - begin, index in the parameter) for stored elements [begin, begin + n).
template <class F>
void ForEachElement(const HuggingFaceTensor& tensor, int64_t begin, int64_t n, F&& f) {
  const int64_t base = tensor.first_row * tensor.columns;
  if (!tensor.transposed) {
    for (int64_t i = 0; i < n; ++i) f(i, base + begin + i);
    return;
  }
  const int64_t out = tensor.shape[1];
  int64_t row = begin % out, column = begin / out;  // of the parameter
  for (int64_t i = 0; i < n; ++i) {
    f(i, base + row * tensor.columns + column);
    if (++row == out) row = 0, ++column;
  }
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const ModelSpec& spec) {
  return TensorsWithPrefix(spec, TableOf(spec).prefix);
}

TensorMatch MatchTensors(const ModelSpec& spec, const std::set<std::string>& names,
                         const std::string& folder) {
  const FamilyTable& table = TableOf(spec);
  const bool prefixed = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(table.prefix);
  });
  TensorMatch match;
  match.tensors = TensorsWithPrefix(spec, prefixed ? table.prefix : "");
  std::set<std::string> extra = names;
  std::vector<std::string> missing, unplaced;
  bool has_head = false;
  for (const HuggingFaceTensor& tensor : match.tensors) {
    if (extra.erase(tensor.name) == 0) missing.push_back(tensor.name);
    has_head |= tensor.param == kHead;
  }
  if (!has_head && extra.erase(kHead) == 1) {
    match.tied_head = kHead;
    match.tied_to = table.outside.front().ours;
  }
  for (const std::string& name : extra)
    if (!IsBuffer(name, table)) unplaced.push_back(name);
  std::vector<std::string> problems;
  if (!missing.empty())
    problems.push_back(fmt::format("{} missing: {}", missing.size(), Listed(missing)));
  if (!unplaced.empty())
    problems.push_back(
        fmt::format("{} without a place in the model: {}", unplaced.size(), Listed(unplaced)));
  MR_REQUIRE(ErrorCode::kData, problems.empty(), "the tensors of {} do not fit its config.json; {}",
             folder, fmt::join(problems, "; "));
  return match;
}

void CopyToParam(const HuggingFaceTensor& tensor, int64_t begin, std::span<const float> stored,
                 std::span<float> param) {
  const auto n = static_cast<int64_t>(stored.size());
  MR_CHECK(begin >= 0 && begin + n <= tensor.numel(), "elements [{}, {}) of {}, which has {}",
           begin, begin + n, tensor.name, tensor.numel());
  ForEachElement(tensor, begin, n, [&](int64_t i, int64_t at) {
    param[static_cast<size_t>(at)] = stored[static_cast<size_t>(i)];
  });
}

std::vector<float> TakeFromParam(const HuggingFaceTensor& tensor, std::span<const float> param) {
  std::vector<float> stored(static_cast<size_t>(tensor.numel()));
  ForEachElement(tensor, 0, tensor.numel(), [&](int64_t i, int64_t at) {
    stored[static_cast<size_t>(i)] = param[static_cast<size_t>(at)];
  });
  return stored;
}

}  // namespace millrace
