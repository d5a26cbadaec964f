#include "models/huggingface/tensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "models/model.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/support/tiny_models.h"

namespace millrace {
namespace {

using test::TinyGpt2;
using test::TinyLlama;

std::map<std::string, ParamSpec> ParamsOf(const ModelSpec& spec) {
  std::map<std::string, ParamSpec> params;
  for (const UnitSpec& unit : spec.units)
    for (const ParamSpec& param : unit.params) params[param.name] = param;
  return params;
}

std::set<std::string> NamesOf(const ModelSpec& spec) {
  std::set<std::string> names;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(spec)) names.insert(tensor.name);
  return names;
}

const HuggingFaceTensor& Named(const std::vector<HuggingFaceTensor>& tensors,
                               const std::string& name) {
  for (const HuggingFaceTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  FAIL("no " << name);
  return tensors.front();
}

ModelOptions Untied(ModelOptions options) {
  options.tied = false;
  return options;
}
ModelOptions Tied(ModelOptions options) {
  options.tied = true;
  return options;
}

TEST_CASE("gpt2's linear weights are stored transposed, everything else as ours", "[huggingface]") {
  const auto tensors = HuggingFaceTensors(
      MakeModel(TinyGpt2())->spec());  // C = 10, 3 heads of 4, F = 22, V = 37, T = 7
  using Dims = std::vector<int64_t>;
  CHECK(Named(tensors, "transformer.wte.weight").shape == Dims{37, 10});  // no padded rows
  CHECK(Named(tensors, "transformer.wpe.weight").shape == Dims{7, 10});
  CHECK(Named(tensors, "transformer.h.0.attn.c_attn.weight").shape == Dims{10, 36});
  CHECK(Named(tensors, "transformer.h.0.attn.c_attn.bias").shape == Dims{36});
  CHECK(Named(tensors, "transformer.h.0.attn.c_proj.weight").shape == Dims{12, 10});
  CHECK(Named(tensors, "transformer.h.0.mlp.c_fc.weight").shape == Dims{10, 22});
  CHECK(Named(tensors, "transformer.h.0.mlp.c_proj.weight").shape == Dims{22, 10});
  CHECK(Named(tensors, "transformer.ln_f.bias").shape == Dims{10});
  CHECK(tensors.size() == 2 + 12 + 2);
}

TEST_CASE("llama's projections are row ranges of our fused ones", "[huggingface]") {
  const auto tensors = HuggingFaceTensors(
      MakeModel(TinyLlama())->spec());  // C = 10, 4 / 2 heads of 4, F = 14, V = 37
  using Dims = std::vector<int64_t>;
  const auto check = [&](const std::string& name, const std::string& param, const Dims& shape,
                         int64_t first_row) {
    CAPTURE(name);
    const HuggingFaceTensor& tensor = Named(tensors, name);
    CHECK(tensor.param == param);
    CHECK(tensor.shape == shape);
    CHECK(tensor.first_row == first_row);
    CHECK_FALSE(tensor.transposed);
  };
  check("model.layers.0.self_attn.q_proj.weight", "h.0.attn.qkv.weight", {16, 10}, 0);
  check("model.layers.0.self_attn.k_proj.weight", "h.0.attn.qkv.weight", {8, 10}, 16);
  check("model.layers.0.self_attn.v_proj.weight", "h.0.attn.qkv.weight", {8, 10}, 24);
  check("model.layers.0.mlp.gate_proj.weight", "h.0.mlp.gate_up.weight", {14, 10}, 0);
  check("model.layers.0.mlp.up_proj.weight", "h.0.mlp.gate_up.weight", {14, 10}, 14);
  check("lm_head.weight", "lm_head.weight", {37, 10}, 0);
}

TEST_CASE("the tensors cover every element of every parameter once, and come back from it",
          "[huggingface]") {
  const ModelOptions options = GENERATE(TinyGpt2(12), Untied(TinyGpt2()), TinyLlama(12),
                                        Tied(TinyLlama(2)), test::Unequal(TinyLlama()));
  const ModelSpec spec = MakeModel(options)->spec();
  std::map<std::string, std::vector<float>> params, covered;
  float next = 1;
  for (const auto& [name, param] : ParamsOf(spec)) {
    for (int64_t i = 0; i < param.numel(); ++i)
      params[name].push_back(next++);  // every element of the model has a value of its own
    covered[name].assign(static_cast<size_t>(param.numel()), 0);
  }
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(spec)) {
    CAPTURE(tensor.name);
    const std::vector<float> stored = TakeFromParam(tensor, params.at(tensor.param));
    for (int64_t begin = 0; begin < tensor.numel(); begin += 7) {  // in pieces that end inside rows
      const auto n = static_cast<size_t>(std::min<int64_t>(7, tensor.numel() - begin));
      for (size_t i = 0; i < n; ++i) {
        std::vector<float>& to = covered.at(tensor.param);
        const float value = stored[static_cast<size_t>(begin) + i];
        const auto at =
            std::find(params.at(tensor.param).begin(), params.at(tensor.param).end(), value) -
            params.at(tensor.param).begin();
        REQUIRE(to.at(static_cast<size_t>(at)) == 0);
      }
      CopyToParam(tensor, begin,
                  std::span<const float>(stored).subspan(static_cast<size_t>(begin), n),
                  covered.at(tensor.param));
    }
  }
  CHECK(covered == params);
}

TEST_CASE("a transposed weight's element [i, o] is ours [o, i]", "[huggingface]") {
  const HuggingFaceTensor tensor{"w", {2, 3}, "p",
                                 0,   2,      true};  // stored [in 2, out 3], ours [out 3, in 2]
  std::vector<float> param(6);
  const std::vector<float> stored = {0, 1, 2, 10, 11, 12};  // 10 i + o
  CopyToParam(tensor, 0, stored, param);
  CHECK(param == std::vector<float>{0, 10, 1, 11, 2, 12});
  CHECK(TakeFromParam(tensor, param) == stored);
}

std::string WithoutPrefix(const std::string& name) {
  return name == "lm_head.weight" ? name : name.substr(name.find('.') + 1);
}

TEST_CASE("a folder saved from the bare model has no prefix, and old versions saved buffers",
          "[huggingface]") {
  const ModelOptions options = GENERATE(TinyGpt2(2), TinyLlama(2));
  const ModelSpec spec = MakeModel(options)->spec();
  std::set<std::string> bare;
  for (const std::string& name : NamesOf(spec)) bare.insert(WithoutPrefix(name));
  if (options.family == Name(ModelFamily::kGpt2)) {
    bare.insert({"h.0.attn.bias", "h.1.attn.bias", "h.1.attn.masked_bias"});
  } else {
    bare.insert(
        {"layers.0.self_attn.rotary_emb.inv_freq", "layers.1.self_attn.rotary_emb.inv_freq"});
  }
  const TensorMatch match = MatchTensors(spec, bare, "folder");
  const auto want = HuggingFaceTensors(spec);
  REQUIRE(match.tensors.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK(match.tensors[i].name == WithoutPrefix(want[i].name));
    CHECK(match.tensors[i].param == want[i].param);
  }
}

TEST_CASE("prefixed buffers are left aside, one of the other family is not", "[huggingface]") {
  const ModelSpec spec = MakeModel(TinyGpt2(2))->spec();
  std::set<std::string> names = NamesOf(spec);
  names.insert("transformer.h.1.attn.bias");
  CHECK_NOTHROW(MatchTensors(spec, names, "folder"));
  names.insert("model.layers.0.self_attn.rotary_emb.inv_freq");
  RequireError(ErrorCode::kData, {"folder", "1 without a place", "inv_freq"},
               [&] { MatchTensors(spec, names, "folder"); });
}

TEST_CASE("missing and superfluous tensors are named, all of them", "[huggingface]") {
  const ModelSpec spec = MakeModel(TinyLlama(2))->spec();
  std::set<std::string> names = NamesOf(spec);
  names.erase("model.norm.weight");
  names.erase("model.layers.1.mlp.up_proj.weight");
  names.insert({"model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"});
  RequireError(ErrorCode::kData,
               {"folder", "2 missing", "model.norm.weight", "model.layers.1.mlp.up_proj.weight",
                "2 without a place", "model.layers.2.mlp.up_proj.weight",
                "model.layers.0.self_attn.q_proj.bias"},
               [&] { MatchTensors(spec, names, "folder"); });
}

TEST_CASE("a tied model's folder may repeat the head; an untied one's must have it",
          "[huggingface]") {
  const ModelOptions options = GENERATE(TinyGpt2(), TinyLlama());
  const ModelSpec tied = MakeModel(Tied(options))->spec(),
                  untied = MakeModel(Untied(options))->spec();
  CHECK_FALSE(MatchTensors(tied, NamesOf(tied), "folder").tied_head);
  const TensorMatch repeated = MatchTensors(tied, NamesOf(untied), "folder");
  CHECK(repeated.tied_head == "lm_head.weight");
  CHECK(ParamsOf(tied).at(repeated.tied_to).dims == std::vector<int64_t>{37, 10});
  CHECK_FALSE(MatchTensors(untied, NamesOf(untied), "folder").tied_head);
  RequireError(ErrorCode::kData, {"1 missing: lm_head.weight"},
               [&] { MatchTensors(untied, NamesOf(tied), "folder"); });
}

}  // namespace
}  // namespace millrace
