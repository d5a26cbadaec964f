#include "tests/runtime/run/golden_data.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <memory>

#include "models/huggingface/tensors.h"
#include "runtime/base/error.h"
#include "runtime/data/safetensors/safetensors.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/huggingface/exchange.h"
#include "tests/support/ranks.h"

namespace millrace::test {
namespace {

template <class T>
std::vector<T> ReadAll(const SafetensorsFile& file, const std::string& name,
                       const std::string& dtype) {
  const TensorInfo& tensor = file.Tensor(name);
  MR_CHECK(tensor.spec.dtype == dtype, "{} is {}", name, tensor.spec.dtype);
  std::vector<T> values(static_cast<size_t>(tensor.numel));
  file.ReadBytes(tensor, 0, tensor.bytes, values.data());
  return values;
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
}

}  // namespace

Tensors ReadTensors(const std::string& path, const std::string& prefix) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    MR_CHECK(tensor.spec.name.starts_with(prefix), "{} in {}", tensor.spec.name, path);
    tensors[tensor.spec.name.substr(prefix.size())] =
        ReadAll<double>(file, tensor.spec.name, "F64");
  }
  return tensors;
}

Golden::Golden(const std::string& model) : folder("tests/golden/" + model) {
  json = ReadJson(folder + "/golden.json");
  const SafetensorsFile file(folder + "/golden.safetensors");
  tokens = ReadAll<int32_t>(file, "tokens", "I32");
  logits = ReadAll<double>(file, "logits", "F64");
  const std::vector<int64_t> shape = file.Tensor("logits").spec.shape;
  batch = shape.at(0), seq = shape.at(1), vocab = shape.at(2);
  steps = file.Tensor("tokens").spec.shape.at(0);
  MR_CHECK_EQ(static_cast<int64_t>(tokens.size()), steps * batch * (seq + 1),
              "one microbatch per step");
  if (json.contains("encodings")) return;
  grads = ReadTensors(folder + "/grad.safetensors", "grad.");
  params = ReadTensors(folder + "/final.safetensors", "param.");
}

Golden Golden::Otherwise(const std::string& how, const std::string& model) {
  Golden golden(model);
  const std::string file = "tests/golden/" + how + "/" + model;
  golden.json.merge_patch(ReadJson(file + ".json"));
  golden.params = ReadTensors(file + ".safetensors", "param.");
  return golden;
}

std::span<const int32_t> Golden::Row(int64_t step, int64_t row) const {
  return std::span<const int32_t>(tokens).subspan(
      static_cast<size_t>((step * batch + row) * (seq + 1)), static_cast<size_t>(seq + 1));
}

std::string Spread::Text() const {
  return fmt::format("{} x {} data ranks of context {} x tensor {} in {} strips, {} x {} rows each",
                     replicate, shard, context, tensor, strips, accumulate, micro_batch);
}

LoadedConfig GoldenConfig(const Golden& golden, const Spread& spread,
                          const std::vector<std::string>& sets) {
  nlohmann::json model = golden.json.at("model");
  model["init_from"] = golden.Hf();
  const nlohmann::json config = {{"model", model},
                                 {"optimizer", golden.json.at("optimizer")},
                                 {"data", {{"kind", "synthetic"}}},
                                 {"train",
                                  {{"steps", golden.steps},
                                   {"micro_batch", spread.micro_batch},
                                   {"accumulate", spread.accumulate}}},
                                 {"parallel",
                                  {{"replicate", spread.replicate},
                                   {"shard", spread.shard},
                                   {"context", spread.context},
                                   {"tensor", spread.tensor},
                                   {"tensor_strips", spread.strips}}}};
  const std::vector<ConfigText> texts = {{"golden.json", config.dump()}};
  LoadedConfig loaded = LoadConfigTexts(texts, sets, ConfigContext{.world = spread.world()});
  loaded.config = ApplyHuggingFaceConfig(loaded, golden.Hf());
  return loaded;
}

void RunSessions(const LoadedConfig& config, int world, const PlanSelection& plans,
                 const std::function<void(Session& session)>& fn) {
  TestRanks().Run(world, [&](const RankSetup& setup) {
    Session session(config.config, setup.environment(), {plans, false});
    session.InitWeights();
    fn(session);
  });
}

StepScalars StepOn(Session& session, const Golden& golden, const Spread& spread, int64_t step) {
  const int64_t rows = spread.micro_batch * spread.accumulate;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < rows; ++i) {
    const auto row = golden.Row(step, spread.Row(session.rank(), i, golden.batch));
    tokens.insert(tokens.end(), row.begin(), row.end());
  }
  return session.engine().Step(tokens, step, rows * spread.data_ranks() * golden.seq);
}

Tensors HuggingFaceState(Session& session, std::string_view kind) {
  const std::vector<HuggingFaceTensor> table = HuggingFaceTensors(session.run().spec);
  Tensors tensors;
  ForEachLogicalTensor(session.engine(), kind,
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         for (const HuggingFaceTensor& tensor : table) {
                           if (tensor.param != param.spec.name) continue;
                           const std::vector<float> stored = TakeFromParam(tensor, values);
                           tensors[tensor.name].assign(stored.begin(), stored.end());
                         }
                       });
  return tensors;
}

std::vector<double> AllLogits(Session& session, const Golden& golden) {
  std::vector<double> logits;
  for (int64_t row = 0; row < golden.batch; ++row) {
    const auto tokens = golden.Row(0, row).first(static_cast<size_t>(golden.seq));
    for (int64_t position = 0; position < golden.seq; ++position) {
      const std::vector<float> next = session.engine().Logits(tokens, position, golden.vocab);
      logits.insert(logits.end(), next.begin(), next.end());
    }
  }
  return logits;
}

// beta1 = 0 and no clipping make Adam's first moment the gradient itself, bit
// for bit: m = 0 * m + 1 * g.
FirstStep RunFirstStep(const Golden& golden, const Spread& spread, std::vector<std::string> sets) {
  for (const char* set : {"optimizer.betas=[0,0.95]", "optimizer.clip=0"}) sets.push_back(set);
  FirstStep result;
  RunSessions(GoldenConfig(golden, spread, sets), spread.world(), {"train", "generate"},
              [&](Session& session) {
                const std::vector<double> logits = AllLogits(session, golden);
                StepOn(session, golden, spread, 0);
                const Tensors grads = HuggingFaceState(session, "adam_m");
                if (session.rank() == 0) result = {logits, grads};
              });
  return result;
}

Trajectory RunTrajectory(const Golden& golden, const Spread& spread,
                         const std::vector<std::string>& sets) {
  Trajectory result;
  RunSessions(GoldenConfig(golden, spread, sets), spread.world(), {"train"}, [&](Session& session) {
    Trajectory mine;
    for (int64_t step = 0; step < golden.steps; ++step) {
      const StepScalars scalars = StepOn(session, golden, spread, step);
      mine.loss.push_back(scalars.loss);
      mine.grad_norm.push_back(scalars.grad_norm);
      mine.lr.push_back(scalars.lr);
    }
    mine.params = HuggingFaceState(session, "master");
    if (session.rank() == 0) result = mine;
  });
  return result;
}

}  // namespace millrace::test
