#include "runtime/config/validate.h"

#include <catch2/catch.hpp>

#include "tests/runtime/config/load_support.h"
#include "tests/runtime/config/validate_cases.h"

namespace millrace {
namespace {

TEST_CASE("sequences that are generated fit the model and the pages", "[config][validate]") {
  const std::string length = "model.seq_len=64";
  Check(
      {{{length, "inference.max_length=64"}, "", ""},
       {{length, "inference.max_length=65"}, "inference.max_length", "as long as the model's, 64"},
       {{length, "inference.page_tokens=10", "inference.pages=7"}, "", ""},
       {{length, "inference.page_tokens=10", "inference.pages=6"},
        "inference.pages",
        "max_length takes 7 pages"}});
}

TEST_CASE("plans of inference: no more rows than there can be, each number once",
          "[config][validate]") {
  using Rows = std::vector<int64_t>;
  InferenceConfig inference;
  inference.prefill = Rows{256, 8, 64, 512, 8};
  inference.decode = Rows{4, 1, 16, 9};
  REQUIRE(inference.PrefillRows(100) == Rows{8, 64, 100});
  REQUIRE(inference.DecodeRows() == Rows{1, 4, 8});
  inference.max_length = 30;
  inference.slots = 12;
  inference.prefill = int64_t{20};
  REQUIRE(inference.PrefillRows(100) == Rows{20});
  REQUIRE(inference.DecodeRows() == Rows{1, 4, 9, 12});
  REQUIRE(inference.Pages(100) == 12);
  inference.page_tokens = 7;
  REQUIRE(inference.PagesOfSequence(100) == 5);
  REQUIRE(inference.Pages(100) == 60);
}

TEST_CASE("ranks along tensor divide all that they split", "[config][validate]") {
  const std::string moe = "model.family=qwen3_moe", two = "parallel.tensor=2";
  const std::string sequence = "model.moe.aux_loss=sequence", eight = "model.seq_len=8";
  Check(
      {{{moe, two, "model.moe.shared_ffn=8"}, "", ""},
       {{moe, two, "model.moe.shared_ffn=7"}, "parallel.tensor", "divide model.moe.shared_ffn 7;"},
       {{moe, sequence}, "", ""},
       {{moe, sequence, two, "train.micro_batch=1"}, "", ""},
       {{moe, sequence, two, "train.micro_batch=4"}, "", ""},
       {{moe, sequence, two, "train.micro_batch=2", "parallel.tensor_strips=2"}, "", ""},
       {{moe, sequence, two, "train.micro_batch=3"},
        "model.moe.aux_loss",
        "a multiple of 2 or a divisor of tensor_strips, or aux_loss switch or pooled"},
       {{moe, sequence, two, "train.micro_batch=6", "parallel.tensor_strips=2"},
        "model.moe.aux_loss",
        "a multiple of 4"},
       {{two, eight, "parallel.tensor_strips=4"}, "", ""},
       {{two, eight, "parallel.tensor_strips=3"},
        "parallel.tensor",
        "divide model.seq_len 8 in 3 strips; with this model tensor can be 1"},
       {{two, eight, "parallel.context=4"}, "", ""},
       {{"parallel.tensor=4", eight, "parallel.context=4"},
        "parallel.tensor",
        "divide model.seq_len 8 over 4 ranks of context; with this model tensor can be 1, 2"},
       {{"parallel.tensor=5", "model.heads=9", "model.d_model=72"},
        "parallel.tensor",
        "divide model.heads 9, model.kv_heads 9, model.ffn 288, model.seq_len 1024; with"}});
}

TEST_CASE("two chunks of each sequence for each rank of context", "[config][validate]") {
  const std::string three = "parallel.context=3", wide = "model.seq_len=24";
  Check({{{three, wide}, "", ""},
         {{three, "model.seq_len=32"},
          "parallel.context",
          "seq_len 36 would be, and so would 30. With seq_len 32, context can be 2 or 4"},
         {{"parallel.context=9", "model.seq_len=12"},
          "parallel.context",
          "seq_len 18 would be. With seq_len 12, context can be 6"},
         {{three, "model.seq_len=35"}, "parallel.context", "With seq_len 35, context must be 1"},
         // One problem, and no other of rows that there would not be.
         {{three, "model.seq_len=32", "parallel.tensor=4"}, "parallel.context", "is no multiple"}});
}

TEST_CASE("data needs a path, a vocabulary and a tokenizer that can be read",
          "[config][validate]") {
  const std::string one = R"(data.sources=[{"path": "a"}, {"path": "b", "weight": 2}])",
                    own_val = R"(data.sources=[{"path": "a", "val_path": "b"}])",
                    mixed = R"(data.sources=[{"path": "a"}, {"path": "b", "kind": "tokens"}])";
  Check({{{"data.kind=text"}, "data.path", "needed for text"},
         {{"data.kind=text", "data.path=a.txt"}, "", ""},
         {{"data.kind=tokens", "model.vocab=50257"}, "data.path", "needed for tokens"},
         {{"data.kind=tokens", "data.path=a.bin"}, "model.vocab", "written with"},
         {{"data.kind=tokens", "data.path=a.bin", "model.vocab=50257"}, "", ""},
         {{"data.kind=tokens", "data.path=a.bin", "model.init_from=gpt2"}, "", ""},
         {{"data.kind=text", "data.path=a.txt", "model.vocab=255"}, "model.vocab", "at least 256"},
         {{"data.kind=text", one}, "", ""},
         {{"data.kind=text", one, "data.path=c"}, "data.path", "one of the two"},
         {{"data.kind=text", one, "data.val_path=c"}, "", ""},
         {{"data.kind=text", own_val, "data.val_path=c"}, "data.val_path", "in one place"},
         {{"data.kind=text", mixed}, "model.vocab", "written with"},
         {{"data.kind=text", mixed, "model.vocab=255"}, "model.vocab", "at least 256"},
         {{"data.kind=text", mixed, "model.vocab=50257"}, "", ""},
         {{"model.vocab=17"}, "", ""},
         {{"data.tokenizer=llama/tokenizer.json"}, "data.tokenizer", "\"llama/tokenizer.json\""},
         {{"data.tokenizer=llama/tokenizer.json"}, "data.tokenizer", "millrace tokenize"},
         {{"data.kind=tokens", "data.path=a.bin", "model.vocab=50257",
           "data.tokenizer=llama/tokenizer.json"},
          "",
          ""}});
}

TEST_CASE("tasks are those that there are", "[config][validate]") {
  Check({{{R"(eval.tasks=["ppl:a", "hellaswag:b.bin"])"}, "", ""},
         {{R"(eval.tasks=["ppl:a", "mmlu:b"])"}, "eval.tasks", "mmlu:b is not known"},
         {{R"(eval.tasks=["hellaswag:a.txt"])"}, "eval.tasks", "neither .bin nor .jsonl"}});
}

TEST_CASE("global_batch sets accumulate, or checks it", "[config][validate]") {
  const ConfigContext three{.world = 3};
  Check({{{"train.micro_batch=4", "train.global_batch=24"}, "", "", three},
         {{"train.micro_batch=4", "train.global_batch=25"},
          "train.global_batch",
          "= 12 on 3 ranks",
          three},
         {{"train.micro_batch=4", "train.global_batch=8"},
          "train.global_batch",
          "= 12 on 3 ranks",
          three},
         {{"train.micro_batch=4", "train.global_batch=24", "train.accumulate=2"}, "", "", three},
         {{"train.micro_batch=4", "train.global_batch=24", "train.accumulate=3"},
          "train.global_batch",
          "= 36 on 3 ranks",
          three},
         {{"train.micro_batch=4", "train.global_batch=25"}, "", ""}});
  const TrainConfig train =
      Load({kSynthetic}, {"train.micro_batch=4", "train.global_batch=24"}, three).config.train;
  REQUIRE(train.Accumulate(3) == 2);
  REQUIRE(train.Accumulate(1) == 6);
  REQUIRE(train.GlobalBatch(3) == 24);
  REQUIRE(TrainConfig{.micro_batch = 5, .accumulate = 7}.GlobalBatch(2) == 70);
  REQUIRE(TrainConfig{.micro_batch = 5}.GlobalBatch(2) == 10);
}

// Products of axes that 64 bits have no room for.
TEST_CASE("a world that nobody has is a mistake like others", "[config][validate]") {
  std::vector<std::string> sets;
  for (const char* axis : {"replicate", "tensor", "context", "expert"})
    sets.push_back(std::string("parallel.") + axis + "=65536");
  const auto said = [&]() -> std::string {
    try {
      LoadConfig({}, sets, {.world = 6});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(said(), Catch::Matchers::Contains(
                         "must divide the world, 6 ranks, as 6 would; 4194304 or more does"));
  sets.push_back("parallel.shard=1000000");
  CHECK_THAT(said(), Catch::Matchers::Contains("must be the world, 6 ranks, not 4194304 or more"));
}

TEST_CASE("shard times replicate is the world", "[config][validate]") {
  const ConfigContext six{.world = 6};
  Check({{{}, "", "", six},
         {{"parallel.replicate=2"}, "", "", six},
         {{"parallel.replicate=4"},
          "parallel.replicate",
          "divide the world, 6 ranks, as 3 or 6 would; 4 does not",
          six},
         {{"parallel.replicate=7"}, "parallel.replicate", "as 6 would; 7 does not", six},
         {{"parallel.replicate=2", "parallel.tensor=2"},
          "parallel.replicate",
          "replicate * tensor must divide the world, 6 ranks, as 3 or 6 would; 4 does not",
          six},
         {{"parallel.shard=3", "parallel.replicate=2"}, "", "", six},
         {{"parallel.shard=3"},
          "parallel.shard",
          "world, 6 ranks, not 3; shard may be left out, or 6",
          six},
         {{"parallel.shard=6", "parallel.replicate=2"},
          "parallel.shard",
          "world, 6 ranks, not 12; shard may be left out, or 3",
          six},
         {{"parallel.shard=3", "parallel.replicate=4"}, "", ""}});
  REQUIRE(ParallelConfig{.replicate = 2}.Shard(6) == 3);
}

TEST_CASE("linears in FP8 are refused with what they cannot be beside", "[config][validate]") {
  const ConfigContext two{.world = 2};
  for (const std::string fp8 : {"precision.linear=fp8_tensor", "precision.linear=fp8_block"}) {
    REQUIRE(Problems({kSynthetic}, {fp8}, two).empty());
    const auto problems = Problems({kSynthetic}, {fp8, "parallel.tensor=2"}, two);
    REQUIRE(problems.size() == 1);
    REQUIRE(problems[0].find("with parallel.tensor 1 they can be") != std::string::npos);
    const auto documents =
        Problems({kSynthetic}, {fp8, "data.document_mask=true", "data.end_of_document=0"}, two);
    const bool tensor = fp8.ends_with("tensor");
    REQUIRE(std::any_of(documents.begin(), documents.end(), [](const std::string& problem) {
              return problem.find("fp8_block and compute keep them apart") != std::string::npos;
            }) == tensor);
  }
  REQUIRE(Problems({kSynthetic}, {"precision.linear=compute", "parallel.tensor=2"}, two).empty());
  REQUIRE(Problems({kSynthetic}, {"precision.linear=fp8"}).size() == 1);
}

TEST_CASE("weights gathered in FP8 are refused with what they cannot be beside",
          "[config][validate]") {
  const std::string linear = "precision.gather=linear", fp8 = "precision.linear=fp8_block";
  REQUIRE(Problems({kSynthetic}, {linear, fp8}).empty());
  REQUIRE(Problems({kSynthetic}, {linear, "precision.linear=fp8_tensor"}).empty());
  const auto refused = [&](const std::vector<std::string>& sets, const std::string& why) {
    const auto problems = Problems({kSynthetic}, sets);
    INFO(why);
    REQUIRE(problems.size() == 1);
    REQUIRE(problems[0].find("precision.gather = \"linear\"") != std::string::npos);
    REQUIRE(problems[0].find(why) != std::string::npos);
  };
  refused({linear}, "linear goes with precision.linear fp8_tensor or fp8_block");
  for (const std::string downcast : {"per_gather", "after_gather"})
    refused({linear, fp8, "precision.compute=bf16", "sharding.downcast=" + downcast},
            "with linear, sharding.downcast after_update is allowed");
  refused({linear, fp8, "model.family=qwen3_moe", "model.moe.experts=4", "model.moe.top_k=2"},
          "without experts it can be linear, with them compute is allowed");
  const std::vector<std::string> hybrid = {linear, fp8, "model.family=nemotron_h",
                                           "model.pattern=M*", "model.mtp.depth=1"};
  const auto with = [&](const std::string& set) {
    std::vector<std::string> sets = hybrid;
    sets.push_back(set);
    return sets;
  };
  REQUIRE(Problems({kSynthetic}, with("model.mtp.pattern=*-")).empty());
  refused(with("model.mtp.pattern=*E"), "model.mtp.pattern = \"*E\"");
  REQUIRE(Problems({kSynthetic}, {"precision.gather=fp8"}).size() == 1);
}

TEST_CASE("fp16 is refused with what it cannot be beside", "[config][validate]") {
  const std::string fp16 = "precision.compute=fp16";
  REQUIRE(Problems({kSynthetic}, {fp16, "precision.grad_accumulate=fp16",
                                  "precision.grad_wire=fp16", "precision.norms=compute"})
              .empty());
  const auto refused = [](const std::vector<std::string>& sets, const std::string& part) {
    const auto problems = Problems({kSynthetic}, sets);
    CAPTURE(sets, problems);
    REQUIRE(problems.size() == 1);
    REQUIRE(problems[0].find(part) != std::string::npos);
  };
  for (const std::string compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    refused({compute, "precision.grad_accumulate=fp16"}, "bf16 and fp32 are allowed here");
    refused({compute, "precision.grad_wire=fp16"}, "bf16 and fp32 are allowed here");
  }
  refused({fp16, "precision.grad_accumulate=bf16"}, "fp16 and fp32 are allowed");
  refused({fp16, "precision.grad_wire=bf16"}, "fp16 and fp32 are allowed");
  refused({fp16, "precision.linear=fp8_block"}, "with fp16, compute is allowed");
  refused({fp16, "optimizer.name=muon"}, "adamw is allowed");
  refused({fp16, R"(optimizer.groups=[{"parameters": "h.*", "name": "muon"}])"},
          "adamw is allowed");
  refused({fp16, "optimizer.moments=fp16"}, "bf16");
  refused({fp16, "precision.loss_scale.init_scale=1000"}, "512 and 1024 are the nearest");
  refused({fp16, "precision.loss_scale.growth_factor=3"}, "2 and 4 are the nearest");
  refused({fp16, "precision.loss_scale.backoff_factor=0.4"}, "0.25 and 0.5 are the nearest");
  refused({fp16, "precision.loss_scale.init_scale=0.5"}, "precision.loss_scale.init_scale");
  refused({fp16, "precision.loss_scale.backoff_factor=1"}, "precision.loss_scale.backoff_factor");
}

TEST_CASE("a pipeline is refused by name", "[config][validate]") {
  REQUIRE(Problems({kSynthetic}, {"parallel.pipe=1"}).empty());
  REQUIRE(Problems({kSynthetic}, {"parallel.pipe=2"}) ==
          std::vector<std::string>{"--set parallel.pipe=2: parallel.pipe = 2: must be 1 (pipelines "
                                   "come later)"});
}

TEST_CASE("schedules fit into the run", "[config][validate]") {
  const std::string cosine = "optimizer.schedule.kind=cosine", wsd = "optimizer.schedule.kind=wsd";
  const std::string decay = "optimizer.schedule.decay_steps";
  Check({{{"train.steps=10", "optimizer.schedule.warmup=11"},
          "optimizer.schedule.warmup",
          "fit into the run"},
         {{"train.steps=10", "optimizer.schedule.warmup=10"}, "", ""},
         {{cosine, "optimizer.lr=1e-3", "optimizer.schedule.min_lr=2e-3"},
          "optimizer.schedule.min_lr",
          "exceed lr"},
         {{cosine, "optimizer.lr=1e-3", "optimizer.schedule.min_lr=1e-3"}, "", ""},
         {{cosine, "train.steps=10", decay + "=20"}, "", ""},
         {{wsd, "train.steps=10", "optimizer.schedule.warmup=4", decay + "=7"},
          decay.c_str(),
          "together"},
         {{wsd, "train.steps=10", "optimizer.schedule.warmup=4", decay + "=6"}, "", ""}});
  REQUIRE(ScheduleConfig{.kind = ScheduleConfig::Kind::kCosine, .warmup = 30}.DecaySteps(100) ==
          70);
  REQUIRE(ScheduleConfig{.kind = ScheduleConfig::Kind::kWsd, .warmup = 30}.DecaySteps(101) == 21);
  REQUIRE(ScheduleConfig{.kind = ScheduleConfig::Kind::kWsd, .warmup = 95}.DecaySteps(100) == 5);
  REQUIRE(ScheduleConfig{}.DecaySteps(100) == 0);
}

TEST_CASE("a reduction in every microbatch cannot wait for the last one's concat",
          "[config][validate]") {
  const std::string last = "sharding.grad_concat=last", two = "train.accumulate=2";
  Check({{{last, two}, "sharding.grad_concat", "grad_sync last"},
         {{last, two, "sharding.grad_sync=last"}, "", ""},
         {{last}, "", ""},
         {{"sharding.grad_concat=every", two}, "", ""},
         {{"sharding.grad_concat=direct", two}, "", ""},
         {{last, "train.micro_batch=2", "train.global_batch=8"},
          "sharding.grad_concat",
          "",
          {.world = 2}},
         {{last, "train.micro_batch=2", "train.global_batch=8"}, "", "", {.world = 4}},
         {{"sharding.reshard=auto"}, "sharding.reshard", "needs one"},
         {{"sharding.reshard=auto", "memory.budget_gib=1.5"}, "", ""}});
}

TEST_CASE("slots hold what is gathered ahead", "[config][validate]") {
  for (const std::string allocator : {"coloured", "max_pool", "fixed"})
    Check({{{"memory.allocator=" + allocator, "memory.slots=2"}, "", ""},
           {{"memory.allocator=" + allocator, "memory.slots=1"}, "memory.slots", "prefetch + 1"},
           {{"memory.allocator=" + allocator, "memory.slots=2", "sharding.reshard=auto",
             "memory.budget_gib=1"},
            "",
            ""},
           {{"memory.allocator=" + allocator, "sharding.reshard=never"}, "", ""},
           {{"memory.allocator=" + allocator, "memory.slots=1", "memory.prefetch=0"}, "", ""},
           {{"memory.allocator=" + allocator, "memory.slots=3", "memory.prefetch=3"},
            "memory.slots",
            "prefetch + 1"}});
  REQUIRE(MemoryConfig{.prefetch = 3}.Slots() == 4);
  REQUIRE(MemoryConfig{.prefetch = 3, .slots = 6}.Slots() == 6);
}

TEST_CASE("cuda is refused where it cannot run", "[config][validate]") {
  Check({{{"execution.backend=cuda"}, "execution.backend", "no CUDA"},
         {{"execution.backend=cuda"}, "", "", {.has_cuda = true}},
         {{"execution.backend=auto"}, "", ""},
         {{"execution.backend=cpu"}, "", ""}});
}

TEST_CASE("peers' memory takes GPUs and peers", "[config][validate]") {
  const std::string on = "execution.peer_memory=on", automatic = "execution.peer_memory=auto";
  const ConfigContext gpus{.has_cuda = true}, two{.world = 2, .has_cuda = true};
  const ConfigContext eight{.world = 8, .has_cuda = true}, many{.world = 16, .has_cuda = true};
  const char* most = "from 2 to 8 GPUs to a copy of the parameters, not 16; with more, ";
  const char* none = "with one rank to a copy of the parameters nothing is gathered";
  Check({{{on, "execution.backend=cpu"}, "execution.peer_memory", "that of GPUs", gpus},
         {{on}, "execution.peer_memory", "no CUDA"},
         {{on}, "execution.peer_memory", "one rank has no peers", {.world = 1, .has_cuda = true}},
         {{on}, "", "", gpus},
         {{on}, "", "", two},
         {{on}, "", "", eight},
         {{on}, "execution.peer_memory", most, many},
         {{on, "parallel.shard=16"}, "execution.peer_memory", most, many},
         {{on, "parallel.shard=16"}, "execution.peer_memory", most, gpus},
         {{on, "parallel.replicate=2"}, "", "", many},
         {{automatic}, "", "", many},
         {{on, "parallel.replicate=2"}, "execution.peer_memory", none, two},
         {{on, "parallel.shard=1"}, "execution.peer_memory", none, gpus},
         {{automatic}, "", ""},
         {{automatic, "execution.backend=cpu"}, "", "", two},
         {{automatic}, "", "", {.world = 1}}});
}

TEST_CASE("a gather that rounds takes peers' memory on GPUs", "[config][validate]") {
  const std::string bf16 = "precision.compute=bf16";  // with fp32 there is nothing to round
  const std::string fused = "sharding.downcast=in_gather", cuda = "execution.backend=cuda";
  const ConfigContext gpus{.has_cuda = true}, chosen{.has_cuda = true, .auto_is_cuda = true};
  Check({{{bf16, fused, cuda}, "sharding.downcast", "peer_memory on or auto", gpus},
         {{bf16, fused, cuda, "execution.peer_memory=auto"}, "", "", gpus},
         {{bf16, fused, cuda, "execution.peer_memory=on"}, "", "", gpus},
         {{bf16, fused, "execution.backend=cpu"}, "", ""},
         {{bf16, fused}, "", "", gpus},
         {{bf16, fused}, "sharding.downcast", "", chosen},
         {{bf16, fused, "execution.backend=cpu"}, "", "", chosen}});
}

TEST_CASE("a rule names the values, and where each comes from", "[config][validate]") {
  const std::vector<std::string> problems =
      Problems({kSynthetic, "{\"model\": {\n  \"heads\": 3}}"}, {"model.d_model=100"});
  REQUIRE(problems ==
          std::vector<std::string>{"model.d_model = 100 (--set model.d_model=100), model.heads = 3 "
                                   "(file1.json:2:3): d_model must be a multiple of heads"});
  REQUIRE(Problems({R"({"data": {"kind": "text"}})"})[0].starts_with(
      "data.path = null (default), data.kind = \"text\" (file0.json:1:11): "));
}

TEST_CASE("rules over a key that is wrong already stay silent", "[config][validate]") {
  REQUIRE(Problems({kSynthetic}, {"model.d_model=0", "model.heads=5"}).size() == 1);
  REQUIRE(Problems({R"({"data": {"pth": "a.txt"}})"}).size() == 1);  // not: data.path is needed
  REQUIRE(Problems({R"({"data": 5})"}).size() == 1);
  REQUIRE(Problems({"{"}).size() == 1);
  REQUIRE(Problems({kSynthetic},
                   {"model.d_model=100", "model.heads=3", "optimizer.schedule.warmup=5000"})
              .size() == 2);
}

TEST_CASE("rules over model keys wait for the folder that the model starts from",
          "[config][validate]") {
  Check({{{"model.init_from=llama", "model.heads=7"}, "", ""},
         {{"model.init_from=llama", "model.heads=7", "model.d_model=100"},
          "model.d_model",
          "multiple of heads"},
         {{"model.init_from=llama", "model.rope_theta=500000"}, "", ""}});
}

TEST_CASE("documents are masked where ranks share no sequences and no block predicts further",
          "[config][validate]") {
  const std::string mask = "data.document_mask=true", end = "data.end_of_document=10",
                    family = "model.family=qwen3";
  Check({{{mask, end, "parallel.context=2", "model.seq_len=64"},
          "data.document_mask",
          "have no documents"},
         {{mask, end, family, "model.mtp.depth=1"}, "data.document_mask", "look into other"},
         {{mask, "data.end_of_document=256"}, "data.end_of_document", "vocabulary of 256"},
         {{mask, end, family}, "", ""}});
}

TEST_CASE("masks of targets lie beside token files, and are the only weights",
          "[config][validate]") {
  const std::string mask = "data.loss_mask=true", tokens = "data.kind=tokens",
                    vocab = "model.vocab=300", path = "data.path=x";
  Check({{{mask}, "data.loss_mask", "beside token files"},
         {{mask, path, tokens, vocab, "train.loss_weights=true"},
          "data.loss_mask",
          "or with each step"},
         {{mask, path, tokens, vocab, "model.family=qwen3", "model.mtp.depth=1"}, "", ""},
         {{"data.loss_mask=false", "train.loss_weights=true"}, "", ""},
         {{mask, path, tokens, vocab}, "", ""}});
}

TEST_CASE("the best checkpoints are those of steps that are evaluated", "[config][validate]") {
  const std::string best = "checkpoint.keep_best=1";
  Check({{{best, "train.eval_every=30", "checkpoint.every=100"},
          "checkpoint.keep_best",
          "multiple of eval_every"},
         {{best, "train.eval_every=50", "checkpoint.every=100"}, "", ""},
         {{best, "train.eval_every=50", "checkpoint.every=0"}, "", ""},
         {{"train.eval_every=30", "checkpoint.every=100"}, "", ""}});
}

}  // namespace
}  // namespace millrace
