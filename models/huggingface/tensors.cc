#include "models/huggingface/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <variant>

#include "models/huggingface/tensor_names.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

using names::Entry, names::FamilyTable, names::Form, names::IsBuffer, names::Rows, names::TableOf;

constexpr const char* kHead =
    "lm_head.weight";  // the same in all families, and ours; never prefixed

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

// "mtp.2.attn.qkv.weight" -> "2" and "attn.qkv.weight".
std::optional<BlockName> SplitMtp(std::string_view name) {
  if (!name.starts_with("mtp.")) return std::nullopt;
  const size_t dot = name.find('.', 4);
  return BlockName{name.substr(4, dot - 4), name.substr(dot + 1)};
}

// Which of the block's branches a parameter "moe.router.weight" or "norm_2.weight" belongs to.
size_t BranchOf(const BlockShape& block, std::string_view rest) {
  constexpr std::string_view kKinds[] = {"attn.", "mlp.", "moe.", "mamba."};
  static_assert(std::size(kKinds) == std::variant_size_v<Branch>);
  if (rest.starts_with("norm_")) return static_cast<size_t>(rest[5] - '1');
  for (size_t i = 0; i < block.branches.size(); ++i)
    if (rest.starts_with(kKinds[block.branches[i].index()])) return i;
  MR_FAIL("{} belongs to no branch", rest);
}

// A parameter of a block that predicts further.
class MtpTensors {
 public:
  MtpTensors(const ModelSpec& spec, const FamilyTable& table, std::string_view prefix,
             const BlockName& name)
      : spec_(spec),
        table_(table),
        prefix_(prefix),
        depth_(static_cast<int64_t>(BlockNumber(name))),
        rest_(name.rest),
        by_branch_(table.family == ModelFamily::kNemotronH) {}

  void Add(const ParamSpec& param, std::vector<HuggingFaceTensor>* tensors) const {
    const size_t last = spec_.mtp.block.branches.size() - 1;
    for (const auto& [ours, theirs] :
         {std::pair<std::string_view, std::string_view>{"norm_e.weight", "enorm.weight"},
          {"norm_h.weight", "hnorm.weight"}})
      if (rest_ == ours) return Push(param, Layer(0) + std::string(theirs), {}, tensors);
    if (rest_ == "norm_out.weight")
      return Push(param,
                  Layer(last) + (by_branch_ ? "final_layernorm" : "shared_head.norm") + ".weight",
                  {}, tensors);
    if (rest_ == "e_proj.weight" || rest_ == "h_proj.weight") {
      Push(param, Layer(0) + "eh_proj.weight", {}, tensors);
      HuggingFaceTensor& half = tensors->back();
      half.stored_columns = 2 * half.columns;
      half.first_column = rest_ == "h_proj.weight" ? half.columns : 0;
      half.shape[1] = half.stored_columns;
      return;
    }
    const size_t branch = BranchOf(spec_.mtp.block, rest_);
    if (by_branch_ && rest_.starts_with("norm_"))
      return Push(param, Layer(branch) + "norm.weight", {}, tensors);
    for (const Entry& entry : table_.block)
      if (entry.ours == rest_)
        Push(param, Layer(branch) + std::string(entry.theirs), entry, tensors);
  }

 private:
  std::string Layer(size_t branch) const {
    if (!by_branch_)
      return fmt::format("{}{}{}.", prefix_, table_.block_prefix, spec_.layers() + depth_ - 1);
    const auto branches = static_cast<int64_t>(spec_.mtp.block.branches.size());
    return fmt::format("mtp.layers.{}.", (depth_ - 1) * branches + static_cast<int64_t>(branch));
  }
  void Push(const ParamSpec& param, std::string name, const Entry& entry,
            std::vector<HuggingFaceTensor>* tensors) const {
    if (entry.form == Form::kExperts)
      AddExperts(spec_.mtp.block, param, name, entry, tensors);
    else
      tensors->push_back(MakeTensor(spec_.mtp.block, param, std::move(name), entry));
  }

  const ModelSpec& spec_;
  const FamilyTable& table_;
  const std::string_view prefix_;
  const int64_t depth_;
  const std::string_view rest_;
  const bool by_branch_;
};

std::vector<HuggingFaceTensor> TensorsWithPrefix(const ModelSpec& spec, std::string_view prefix) {
  const FamilyTable& table = TableOf(spec);
  std::vector<HuggingFaceTensor> tensors;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) {
      const size_t before = tensors.size();
      if (param.name == kHead) tensors.push_back(MakeTensor({}, param, kHead, {}));
      if (const auto further = SplitMtp(param.name))
        MtpTensors(spec, table, prefix, *further).Add(param, &tensors);
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

// The first few of many names: a folder of another model has thousands.
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)), ", "));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
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
    if (extra.erase(tensor.name) == 0 && !names.contains(tensor.name))
      missing.push_back(tensor.name);
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

}  // namespace millrace
