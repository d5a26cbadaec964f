#include "runtime/config/given_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/config/idle_keys.h"

namespace millrace {
namespace {

// Whether somebody made the key idle who came after its author.
bool IsDecidedLater(const GivenValues& given, const IdleKey& key) {
  const GivenValue* own = given.Find(key.key);
  if (key.by != IdleBy::kKeys || !own) return true;
  return std::any_of(key.causes.begin(), key.causes.end(), [&](const std::string& cause) {
    const GivenValue* value = given.Find(cause);
    return value && value->author > own->author;
  });
}

// A key that is idle for several reasons is said once: as an error if one of them is.
void CheckIdleKeys(const GivenValues& given, const ConfigContext& context, size_t source,
                   LoadedConfig& loaded, ProblemList& problems) {
  std::vector<IdleKey> idle = FindIdleKeys(loaded.config, context);
  const auto notes = std::stable_partition(
      idle.begin(), idle.end(), [&](const IdleKey& key) { return !IsDecidedLater(given, key); });
  std::set<std::string> said;
  for (auto key = idle.begin(); key != idle.end(); ++key) {
    std::vector<std::string> keys = {key->key};
    keys.insert(keys.end(), key->causes.begin(), key->causes.end());
    if (!given.AreKnown(keys, loaded.config) || !said.insert(key->key).second) continue;
    const std::string line = fmt::format("{}: {}, so {} has no effect",
                                         given.Shown(keys, loaded.config), key->reason, key->key);
    if (key < notes)
      problems.Add(source, 0, key->key, line + "; leave it out");
    else
      loaded.notes.push_back(line);
  }
}

}  // namespace

void RequireWholeSections(GivenValues& given, size_t source, ProblemList& problems) {
  for (const Key& key : Keys()) {
    const auto section = given.objects.find(std::string(key.section()));
    if (!key.required || section == given.objects.end() || given.keys.contains(key.path) ||
        given.failed.contains(key.path))
      continue;
    problems.Add(
        source, 0, key.path,
        fmt::format("{}: {}: missing; must be {}", section->second.place, key.path, Allowed(key)));
    given.failed.insert(key.path);
  }
}

void CheckRules(const GivenValues& given, const ConfigContext& context, size_t source,
                LoadedConfig& loaded, ProblemList& problems) {
  if (given.is_partial) return;
  for (const ConfigProblem& problem : Validate(loaded.config, context))
    if (given.AreKnown(problem.keys, loaded.config))
      problems.Add(source, 0, given.FirstGiven(problem.keys),
                   fmt::format("{}: {}", given.Shown(problem.keys, loaded.config), problem.text));
  CheckIdleKeys(given, context, source, loaded, problems);
}

}  // namespace millrace
