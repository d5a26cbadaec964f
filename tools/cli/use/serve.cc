// millrace serve: a checkpoint behind an endpoint of OpenAI's API.
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/exec/engine.h"
#include "runtime/infer/token_model.h"
#include "runtime/run/data/run_tokenizer.h"
#include "runtime/run/generate/engine_token_model.h"
#include "runtime/run/generate/inference_plans.h"
#include "runtime/run/model_options.h"
#include "runtime/serve/serve_api.h"
#include "tools/cli/command.h"
#include "tools/cli/use/use.h"
#include "tools/launch/stop_requests.h"
#include "tools/serve/http_server.h"

namespace millrace {
namespace {

// A token a line. Whoever else can read the file has them, too.
std::vector<std::string> BearerTokens(const std::string& path) {
  std::vector<std::string> tokens;
  if (path.empty()) return tokens;
  struct stat status = {};
  std::ifstream file(path);
  MR_REQUIRE(ErrorCode::kConfig, file.good() && stat(path.c_str(), &status) == 0,
             "--token-file {} cannot be read", path);
  MR_REQUIRE(ErrorCode::kConfig, (status.st_mode & 077) == 0,
             "--token-file {} has the mode {:03o}, with which others can use it; allowed is 600",
             path, status.st_mode & 0777);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const bool fits =
        line.size() >= 16 && line.size() <= 1024 &&
        std::all_of(line.begin(), line.end(), [](char c) { return c > 32 && c < 127; });
    MR_REQUIRE(ErrorCode::kConfig, fits,
               "--token-file {}: line {} must be 16 to 1024 printable characters without blanks",
               path, tokens.size() + 1);
    tokens.push_back(line);
  }
  MR_REQUIRE(ErrorCode::kConfig, !tokens.empty(), "--token-file {} holds no token", path);
  return tokens;
}

void RequireSafe(const ServeArguments& arguments) {
  if (IsLoopback(arguments.host)) return;
  MR_REQUIRE(ErrorCode::kConfig, !arguments.token_file.empty() && arguments.insecure,
             "--host {} can be reached from other hosts, which takes --token-file, and --insecure: "
             "tokens and texts are not encrypted. Safer is 127.0.0.1 behind a proxy with TLS",
             arguments.host);
}

void RequireServable(const RankContext& context) {
  const Config& config = context.config.config;
  MR_REQUIRE(ErrorCode::kConfig, context.factory.world_size() == 1,
             "serve runs on 1 rank; {} were started", context.factory.world_size());
  MR_REQUIRE(ErrorCode::kConfig, !config.model.BalancedGate(),
             "model.moe.gate is {}, which is for benchmarks; only a model whose gate is {} can be "
             "served",
             Name(config.model.moe.gate), Name(GateKind::kRouter));
  const std::string why =
      WhyNoCaches(config, ModelOptionsOf(config), context.environment.traits.backend);
  MR_REQUIRE(ErrorCode::kConfig, why.empty(), "serve generates with caches: {}", why);
}

ServedText TextOf(const Config& config, const std::string& chat_template) {
  std::optional<ChatTemplate> chat;
  if (!chat_template.empty()) chat = ChatTemplateOf(chat_template);
  auto tokenizer = TokenizerOf(config);
  const TextKind kind = tokenizer             ? TextKind::kTokenizer
                        : TextIsBytes(config) ? TextKind::kBytes
                                              : TextKind::kIdsOnly;
  return ServedText(kind, std::move(tokenizer), chat);
}

// The newest checkpoint of a run that goes on elsewhere. Its bytes are read and compared by another
// thread: the one that asks makes tokens meanwhile.
class FollowedRun final : public WeightSource {
 public:
  FollowedRun(std::string run_dir, Session& session, EngineTokenModel& model, ProgramLog& log)
      : run_dir_(std::move(run_dir)), session_(session), model_(model), log_(log) {}

  bool HasOther(uint64_t version) override {
    if (problems_.valid()) {
      if (problems_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      const std::vector<std::string> problems = problems_.get();
      if (problems.empty()) return true;
      LeaveOut(verified_, problems.front());
    }
    const std::optional<CheckpointEntry> newest = Newest();
    if (!newest || newest->step == static_cast<int64_t>(version)) return false;
    verified_ = newest->folder;
    problems_ = std::async(std::launch::async, VerifyCheckpoint, verified_);
    return false;
  }

  uint64_t Load() override {
    constexpr int kTries = 30;
    for (int tries = 1;; ++tries) {
      try {
        return TryLoad();
      } catch (const Error& error) {
        const bool may_pass =
            error.code() == ErrorCode::kCheckpoint || error.code() == ErrorCode::kIo;
        if (!may_pass || tries == kTries) throw;
        log_.Warning(LogScope::kAllRanks, fmt::format("weights are tried again: {}", error.what()));
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
    }
  }

 private:
  std::optional<CheckpointEntry> Newest() {
    const auto root = std::filesystem::path(run_dir_) / "checkpoints";
    for (CheckpointEntry& entry : ListCheckpoints(root.string())) {
      if (!entry.usable())
        LeaveOut(entry.folder, entry.problem);
      else if (!damaged_.contains(entry.folder))
        return std::move(entry);
    }
    return std::nullopt;
  }

  uint64_t TryLoad() {
    const std::optional<CheckpointEntry> newest = Newest();
    MR_REQUIRE(ErrorCode::kCheckpoint, newest.has_value(), "{} holds no usable checkpoint",
               run_dir_);
    try {
      const ResumedRun loaded =
          LoadForUse(session_.engine(), run_dir_, newest->folder, IdentityOf(session_));
      model_.Enter();
      log_.Info(LogScope::kAllRanks,
                fmt::format("weights of step {} from {}", loaded.progress.step, loaded.path));
      return static_cast<uint64_t>(loaded.progress.step);
    } catch (const Error& error) {  // it may be newer than the one that was verified
      if (error.code() == ErrorCode::kCheckpoint) LeaveOut(newest->folder, error.what());
      throw;
    }
  }

  // A run that thins its checkpoints may have removed it meanwhile.
  void LeaveOut(const std::string& folder, const std::string& why) {
    if (!std::filesystem::exists(folder) || !damaged_.insert(folder).second) return;
    log_.Warning(LogScope::kAllRanks, fmt::format("{} is not served: {}", folder, why));
  }

  const std::string run_dir_;
  Session& session_;
  EngineTokenModel& model_;
  ProgramLog& log_;
  std::set<std::string> damaged_;
  std::string verified_;
  std::future<std::vector<std::string>> problems_;  // of verified_
};

// The first request to stop drains, the second ends.
class StopWatch {
 public:
  StopWatch(ServeEngine& engine, ProgramLog& log)
      : thread_([&, this] {
          int heard = 0;
          while (!over_) {
            const int requests = StopRequests();
            if (requests > heard) {
              log.Info(LogScope::kAllRanks, heard == 0 && requests == 1
                                                ? "asked to stop: answers are finished first"
                                                : "asked to stop again: ending");
              requests == 1 ? engine.Drain() : engine.Stop();
              heard = requests;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        }) {}
  ~StopWatch() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

ServeApiOptions ApiOptions(const ServeArguments& arguments, const Config& config) {
  ServeApiOptions options;
  options.model = arguments.model_name;
  options.bearer_tokens = BearerTokens(arguments.token_file);
  options.max_tokens = arguments.max_tokens;
  if (config.data.end_of_document)
    options.end_token = static_cast<int32_t>(*config.data.end_of_document);
  return options;
}

}  // namespace

int ServeVerb(const ServeArguments& arguments) {
  RequireSafe(arguments);
  CatchStopRequests();
  return RunOnRanks(arguments.config, {std::string(kInferencePlans)}, [&](RankContext& context) {
    RequireServable(context);
    const Config& config = context.config.config;
    ServeApiOptions options = ApiOptions(arguments, config);
    const ServedText text = TextOf(config, arguments.chat_template);
    Session session(config, context.environment, {{std::string(kInferencePlans)}, false});
    const std::string run_dir = arguments.follow.empty() ? config.run.dir : arguments.follow;
    EngineTokenModel model(session.engine(), config);
    const ResumedRun loaded = LoadWeights(context, session, run_dir, arguments.checkpoint);
    model.Enter();
    FollowedRun followed(run_dir, session, model, context.log);
    ServeEngine engine(model, static_cast<uint64_t>(loaded.progress.step),
                       arguments.follow.empty() ? nullptr : &followed,
                       {.max_queue = arguments.max_queue,
                        .request_s = arguments.request_s,
                        .drain_s = arguments.drain_s});
    options.limits.top = std::min(options.limits.top, model.limits().top);
    ServeApi api(engine, text, std::move(options));
    HttpServer server(
        api, arguments.host, static_cast<int>(arguments.port),
        {.connections = arguments.connections, .body_bytes = arguments.max_body_mib << 20});
    const bool is_v6 = arguments.host.find(':') != std::string::npos;
    {
      const StopWatch watch(engine, context.log);
      engine.Run([&] {
        context.log.Info(
            LogScope::kAllRanks,
            fmt::format("serving {} at http://{}{}{}:{}", arguments.model_name, is_v6 ? "[" : "",
                        arguments.host, is_v6 ? "]" : "", server.port()));
      });
    }
    context.log.Info(LogScope::kAllRanks, "stopped serving");
    return 0;
  });
}

}  // namespace millrace
