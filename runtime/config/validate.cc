#include "runtime/config/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "runtime/config/enum_names.h"
#include "runtime/config/eval_spec.h"
#include "runtime/config/validate_model.h"

namespace millrace {
namespace {

using Keys = std::vector<std::string>;

class Validator {
 public:
  Validator(const Config& config, const ConfigContext& context)
      : config_(config), context_(context) {}

  std::vector<ConfigProblem> Run() && {
    ValidateModel(config_, &problems_);
    if (context_.needs_data) Data();
    Documents();
    Precision();
    Batch();
    Schedule();
    Muon();
    Groups();
    Parallel();
    Sharding();
    Memory();
    Execution();
    Checkpoint();
    Inference();
    for (const std::string& task : config_.eval.tasks.value_or(std::vector<std::string>()))
      if (const std::string wrong = WhyNoTask(task); !wrong.empty())
        Require(false, {"eval.tasks"}, "{}", wrong);
    return std::move(problems_);
  }

 private:
  template <typename... Args>
  void Require(bool holds, Keys keys, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds)
      problems_.push_back({std::move(keys), fmt::format(text, std::forward<Args>(args)...)});
  }

  void Data() {
    const DataConfig& data = config_.data;
    Require(data.path || data.sources || data.kind == DataConfig::Kind::kSynthetic,
            {"data.path", "data.kind"},
            "a file or folder to train on is needed for {}, or data.sources; only synthetic data "
            "needs none",
            Name(data.kind));
    if (data.sources) Sources();
    Require(data.tokenizer == "bytes" ||
                (Reads(DataConfig::Kind::kTokens) && !Reads(DataConfig::Kind::kText)),
            {"data.tokenizer", "data.kind"},
            "must be bytes for {}, whose tokens are bytes: with a tokenizer.json make token files "
            "(millrace tokenize), and set data.kind to tokens",
            Name(data.kind));
    if (Reads(DataConfig::Kind::kText))
      Require(config_.model.Vocab() >= 256, {"model.vocab", "data.kind"},
              "bytes need a vocabulary of at least 256");
    if (Reads(DataConfig::Kind::kTokens))
      Require(config_.model.vocab.has_value(), {"model.vocab", "data.kind"},
              "token files need the vocabulary that they were written with");
  }

  // Whether something is trained on that is of this kind.
  bool Reads(DataConfig::Kind kind) const {
    const DataConfig& data = config_.data;
    if (!data.sources) return data.kind == kind;
    return std::any_of(data.sources->begin(), data.sources->end(),
                       [&](const DataSource& source) { return data.KindOf(source) == kind; });
  }

  void Sources() {
    const DataConfig& data = config_.data;
    Require(!data.path, {"data.path", "data.sources"},
            "one of the two says what to train on; sources may have one path alone");
    const bool own = std::any_of(data.sources->begin(), data.sources->end(),
                                 [](const DataSource& source) { return source.val_path; });
    Require(!own || !data.val_path, {"data.val_path", "data.sources"},
            "a source has a val_path of its own: what is evaluated on is said in one place");
  }

  void Documents() {
    const DataConfig& data = config_.data;
    if (data.end_of_document)
      Require(*data.end_of_document < config_.model.Vocab(),
              {"data.end_of_document", "model.vocab"}, "must be an id of the vocabulary of {}",
              config_.model.Vocab());
    if (data.loss_mask == true) {
      Require(!config_.train.loss_weights, {"data.loss_mask", "train.loss_weights"},
              "weights of targets come from the data's masks, or with each step from the program");
      Require(Reads(DataConfig::Kind::kTokens), {"data.loss_mask", "data.kind"},
              "masks lie beside token files, and nothing of that kind is read");
    }
    if (!data.MasksDocuments()) return;
    Require(config_.parallel.context == 1, {"data.document_mask", "parallel.context"},
            "sequences that ranks share have no documents yet; with parallel.context 1 they can");
    Require(config_.model.mtp.depth == 0, {"data.document_mask", "model.mtp.depth"},
            "blocks that predict further would look into other documents; with model.mtp.depth 0 "
            "documents can be masked");
  }

  void Precision() {
    const LinearEncoding linear = config_.precision.linear;
    Require(linear == LinearEncoding::kCompute || config_.parallel.tensor == 1,
            {"precision.linear", "parallel.tensor"},
            "weights that ranks split are not in FP8 yet; with parallel.tensor 1 they can be");
    Require(linear != LinearEncoding::kFp8Tensor || !config_.data.MasksDocuments(),
            {"precision.linear", "data.document_mask"},
            "a scale of a whole tensor lets documents of one row change each other's bits; "
            "fp8_block and compute keep them apart");
    Gather();
    Float16();
  }

  void Gather() {
    if (config_.precision.gather == WeightGather::kCompute) return;
    Require(config_.precision.linear != LinearEncoding::kCompute,
            {"precision.gather", "precision.linear"},
            "linears that compute in `precision.compute` gather weights so; linear goes with "
            "precision.linear fp8_tensor or fp8_block, and compute is allowed");
    Require(config_.sharding.downcast == ShardingConfig::Downcast::kAfterUpdate,
            {"precision.gather", "sharding.downcast"},
            "payloads are made once after each update; with linear, sharding.downcast after_update "
            "is allowed, or precision.gather compute");
    Require(!config_.model.Has('E'), {"precision.gather", KeyOfExperts()},
            "experts are gathered in the compute dtype, together with their block; without experts "
            "it can be linear, with them compute is allowed");
  }

  // Which key gives the model its experts.
  std::string KeyOfExperts() const {
    const auto in = [](const std::optional<std::string>& pattern) {
      return pattern && pattern->find('E') != std::string::npos;
    };
    if (in(config_.model.pattern)) return "model.pattern";
    return in(config_.model.mtp.pattern) ? "model.mtp.pattern" : "model.family";
  }

  void Float16() {
    const PrecisionConfig& precision = config_.precision;
    constexpr auto kFp16 = PrecisionConfig::Format::kFp16;
    if (precision.compute != kFp16) {
      Require(precision.grad_accumulate != kFp16,
              {"precision.grad_accumulate", "precision.compute"},
              "gradients are scaled, as fp16 needs it, where compute is fp16; bf16 and fp32 are "
              "allowed here");
      Require(precision.grad_wire != kFp16, {"precision.grad_wire", "precision.compute"},
              "gradients are scaled, as fp16 needs it, where compute is fp16; bf16 and fp32 are "
              "allowed here");
      return;
    }
    Require(precision.grad_accumulate != PrecisionConfig::Format::kBf16,
            {"precision.grad_accumulate", "precision.compute"},
            "no product of fp16 is formed in bf16; with compute fp16, fp16 and fp32 are allowed");
    Require(precision.grad_wire != PrecisionConfig::Format::kBf16,
            {"precision.grad_wire", "precision.compute"},
            "no product of fp16 is formed in bf16, nor is its result rounded to it on the way; "
            "with compute fp16, fp16 and fp32 are allowed");
    Require(precision.linear == LinearEncoding::kCompute, {"precision.linear", "precision.compute"},
            "products in FP8 go with compute bf16 or fp32; with fp16, compute is allowed");
    Require(!config_.optimizer.HasMuon(),
            {config_.optimizer.name == OptimizerKind::kMuon ? "optimizer.name" : "optimizer.groups",
             "precision.compute"},
            "muon's iteration has not been tried in fp16; adamw is allowed, or compute bf16 or "
            "fp32");
    const LossScaleConfig& scale = precision.loss_scale;
    for (const auto& [key, value] :
         {std::pair{"precision.loss_scale.init_scale", scale.init_scale},
          std::pair{"precision.loss_scale.growth_factor", scale.growth_factor},
          std::pair{"precision.loss_scale.backoff_factor", scale.backoff_factor}})
      Require(IsPowerOfTwo(value), {key},
              "must be a power of two, so that scaling rounds nothing; {} and {} are the nearest",
              std::exp2(std::floor(std::log2(value))), std::exp2(std::ceil(std::log2(value))));
  }

  static bool IsPowerOfTwo(double value) {
    int exponent = 0;
    return std::frexp(value, &exponent) == 0.5;
  }

  void Batch() {
    const TrainConfig& train = config_.train;
    Require(
        train.loss == TrainConfig::Loss::kCrossEntropy || config_.model.mtp.depth == 0,
        {"train.loss", "model.mtp.depth"},
        "blocks that predict further have no policy gradient; with model.mtp.depth 0 it can be");
    if (!train.global_batch || !context_.world) return;
    const int64_t ranks = config_.parallel.DataRanks(*context_.world);
    const int64_t unit = train.micro_batch * ranks;
    const char* const of = config_.parallel.DataRankSize() == 1 ? "world" : "data ranks";
    if (train.accumulate)
      Require(*train.global_batch == unit * *train.accumulate,
              {"train.global_batch", "train.micro_batch", "train.accumulate"},
              "global_batch must be micro_batch * accumulate * {} = {} on {} ranks, or leave "
              "one of the two out",
              of, unit * *train.accumulate, ranks);
    else
      Require(*train.global_batch % unit == 0, {"train.global_batch", "train.micro_batch"},
              "global_batch must be a multiple of micro_batch * {} = {} on {} ranks", of, unit,
              ranks);
  }

  void Schedule() {
    const OptimizerConfig& optimizer = config_.optimizer;
    const ScheduleConfig& schedule = optimizer.schedule;
    const int64_t steps = config_.train.steps;
    Require(schedule.warmup <= steps, {"optimizer.schedule.warmup", "train.steps"},
            "the warm-up must fit into the run: {} steps of {}; with {} steps, warmup can be {}",
            schedule.warmup, steps, steps,
            std::min<int64_t>(steps, std::max<int64_t>(steps / 10, 1)));
    if (schedule.kind != ScheduleConfig::Kind::kConstant)
      Require(schedule.min_lr <= optimizer.lr, {"optimizer.schedule.min_lr", "optimizer.lr"},
              "min_lr must not exceed lr");
    // A cosine may end after the run (a part of a longer one); wsd counts its decay back from the
    // end.
    if (schedule.kind == ScheduleConfig::Kind::kWsd && schedule.decay_steps &&
        schedule.warmup <= steps)
      Require(schedule.warmup + *schedule.decay_steps <= steps,
              {"optimizer.schedule.decay_steps", "optimizer.schedule.warmup", "train.steps"},
              "warm-up and decay together must fit into the run");
  }

  void Muon() {
    const OptimizerConfig& optimizer = config_.optimizer;
    if (!optimizer.HasMuon()) return;
    Require(optimizer.lr > 0 || !optimizer.muon.lr, {"optimizer.muon.lr", "optimizer.lr"},
            "muon.lr follows the schedule of lr in proportion, so lr must be above 0; or leave "
            "muon.lr out");
  }

  void Groups() {
    const OptimizerConfig& optimizer = config_.optimizer;
    if (!optimizer.groups) return;
    for (const OptimizerGroup& group : *optimizer.groups) {
      const std::string problem = ProblemOf(group);
      Require(problem.empty(), {"optimizer.groups"}, "group {}: {}",
              &group - optimizer.groups->data() + 1, problem);
      Require(optimizer.lr > 0 || !group.lr, {"optimizer.groups", "optimizer.lr"},
              "the lr of a group follows the schedule of optimizer.lr in proportion, so that must "
              "be above 0; or leave the group's lr out");
    }
  }

  void Parallel() {
    const ParallelConfig& parallel = config_.parallel;
    if (parallel.context > 1) Context();
    if (!context_.world) return;
    const int64_t world = *context_.world;
    Keys keys = {"parallel.replicate"};
    std::string splits;
    for (const auto& [key, name, ranks] :
         {std::tuple{"parallel.context", "context", parallel.context},
          std::tuple{"parallel.expert", "expert", parallel.expert},
          std::tuple{"parallel.tensor", "tensor", parallel.tensor}}) {
      if (ranks == 1) continue;
      keys.push_back(key);
      splits += fmt::format(" * {}", name);
    }
    const int64_t others = parallel.replicate * parallel.OtherAxes();
    if (parallel.shard) {
      keys.insert(keys.begin(), "parallel.shard");
      Require(*parallel.shard * others == world, keys,
              "shard * replicate{} must be the world, {} ranks, not {}; shard may be left out{}",
              splits, world, InWords(*parallel.shard * others),
              world % others == 0 ? fmt::format(", or {}", world / others) : "");
    } else {
      Require(
          world % others == 0, keys, "{}must divide the world, {} ranks, as {} would; {} does not",
          splits.empty() ? "" : fmt::format("replicate{} ", splits), world,
          NearestThat(others, world, [&](int64_t n) { return world % n == 0; }), InWords(others));
    }
  }
  static std::string InWords(int64_t ranks) {
    return ranks < ParallelConfig::kBeyond ? fmt::format("{}", ranks)
                                           : fmt::format("{} or more", ParallelConfig::kBeyond);
  }

  // Two equal chunks of each sequence on each rank.
  void Context() {
    const int64_t ranks = config_.parallel.context, chunks = 2 * ranks,
                  length = config_.model.seq_len;
    if (length % chunks == 0) return;
    const int64_t below = length / chunks * chunks;
    Require(false, {"parallel.context", "model.seq_len"},
            "sequences are cut into {} equal chunks, two for each rank of context, and {} is no "
            "multiple of that; seq_len {} would be{}. With seq_len {}, context {}",
            chunks, length, below + chunks,
            below > 0 ? fmt::format(", and so would {}", below) : "", length,
            length % 2 == 0 ? fmt::format("can be {}", NearestThat(ranks, length / 2,
                                                                   [&](int64_t n) {
                                                                     return length % (2 * n) == 0;
                                                                   }))
                            : "must be 1");
  }

  // "2 or 4": the nearest numbers from 1 to `most` on either side of `n` that `serve`. 1 does.
  template <class F>
  static std::string NearestThat(int64_t n, int64_t most, F&& serve) {
    int64_t below = std::min(n - 1, most), above = n + 1;
    while (below > 1 && !serve(below)) --below;
    while (above <= most && !serve(above)) ++above;
    if (above > most) return fmt::format("{}", std::max<int64_t>(below, 1));
    return below < 1 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above);
  }

  void Sharding() {
    const ShardingConfig& sharding = config_.sharding;
    Require(sharding.reshard != ShardingConfig::Reshard::kAuto || config_.memory.budget_gib,
            {"sharding.reshard", "memory.budget_gib"}, "auto fills a budget, and needs one");
    using Backend = ExecutionConfig::Backend;
    const Backend backend = config_.execution.backend;
    const bool gpus =
        backend == Backend::kCuda || (backend == Backend::kAuto && context_.auto_is_cuda);
    Require(sharding.downcast != ShardingConfig::Downcast::kInGather || !gpus ||
                config_.execution.peer_memory != ExecutionConfig::PeerMemory::kOff,
            {"sharding.downcast", "execution.peer_memory"},
            "NCCL does not round while it gathers: in_gather on GPUs takes peer_memory on or auto; "
            "per_gather needs neither");
    // Unknown only when global_batch decides and the world is not known.
    const bool accumulates =
        config_.train.accumulate || !config_.train.global_batch || context_.world
            ? config_.train.Accumulate(config_.parallel.DataRanks(context_.world.value_or(1))) > 1
            : false;
    Require(
        !(sharding.grad_sync == ShardingConfig::GradSync::kEvery &&
          sharding.grad_concat == ShardingConfig::GradConcat::kLast && accumulates),
        {"sharding.grad_concat", "sharding.grad_sync", "train.accumulate", "train.global_batch"},
        "a reduction in every microbatch needs its gradients in the bucket each time: use "
        "grad_concat every or direct, or grad_sync last");
  }

  void Memory() {
    const MemoryConfig& memory = config_.memory;
    if (!memory.slots || !MemoryConfig::HasSlots(memory.allocator)) return;
    Require(*memory.slots >= memory.prefetch + 1, {"memory.slots", "memory.prefetch"},
            "slots must be at least prefetch + 1");
  }

  void Inference() {
    const InferenceConfig& inference = config_.inference;
    const int64_t seq_len = config_.model.seq_len;
    Require(inference.MaxLength(seq_len) <= seq_len, {"inference.max_length", "model.seq_len"},
            "sequences that are generated are at most as long as the model's, {}", seq_len);
    Require(inference.Pages(seq_len) >= inference.PagesOfSequence(seq_len),
            {"inference.pages", "inference.page_tokens", "inference.max_length"},
            "a sequence of max_length takes {} pages", inference.PagesOfSequence(seq_len));
  }

  void Execution() {
    Require(config_.execution.backend != ExecutionConfig::Backend::kCuda || context_.has_cuda,
            {"execution.backend"}, "this build has no CUDA; it can run auto or cpu");
    const bool peers = config_.execution.peer_memory == ExecutionConfig::PeerMemory::kOn;
    Require(!peers || config_.execution.backend != ExecutionConfig::Backend::kCpu,
            {"execution.peer_memory", "execution.backend"},
            "peers' memory is that of GPUs: use backend cuda, or peer_memory off or auto");
    Require(!peers || context_.has_cuda, {"execution.peer_memory"},
            "this build has no CUDA; peer_memory can be off or auto");
    Require(!peers || context_.world.value_or(2) > 1, {"execution.peer_memory"},
            "one rank has no peers; with one, peer_memory can be off or auto");
    if (peers && context_.world.value_or(2) > 1) PeersOfACopy();
  }

  void PeersOfACopy() {
    const ParallelConfig& parallel = config_.parallel;
    if (!parallel.shard && !context_.world) return;
    // Ranks among which parameters that nothing splits are sharded.
    const int64_t shard =
        (parallel.shard ? *parallel.shard : parallel.Shard(*context_.world)) * parallel.OtherAxes();
    const Keys keys = {"execution.peer_memory", "parallel.shard", "parallel.replicate"};
    Require(shard <= kMostPeers, keys,
            "peers' memory takes from 2 to {} GPUs to a copy of the parameters, not {}; with more, "
            "peer_memory can be off or auto, or parallel.shard smaller",
            kMostPeers, shard);
    Require(shard != 1, keys,
            "with one rank to a copy of the parameters nothing is gathered or reduce-scattered; "
            "peer_memory can be off or auto, or parallel.shard from 2 to {}",
            kMostPeers);
  }

  void Checkpoint() {
    const CheckpointConfig& checkpoint = config_.checkpoint;
    const int64_t eval_every = config_.train.eval_every;
    if (checkpoint.keep_best == 0 || eval_every == 0) return;
    Require(checkpoint.every % eval_every == 0,
            {"checkpoint.keep_best", "checkpoint.every", "train.eval_every"},
            "a checkpoint can only be among the best if its step is evaluated: every must be a "
            "multiple of eval_every");
  }

  const Config& config_;
  const ConfigContext& context_;
  std::vector<ConfigProblem> problems_;
};

}  // namespace

std::vector<ConfigProblem> Validate(const Config& config, const ConfigContext& context) {
  return Validator(config, context).Run();
}

}  // namespace millrace
