#include "comm/agree.h"

#include <string>
#include <vector>

namespace millrace {
namespace {

// The code as one letter, and the words. Empty: it went well.
std::string Packed(const std::optional<Error>& error) {
  return error
             ? static_cast<char>('a' + static_cast<int>(error->code())) + std::string(error->what())
             : "";
}

Error Unpacked(const std::string& text) {
  return Error(static_cast<ErrorCode>(text[0] - 'a'), text.substr(1));
}

std::optional<Error> FailureOf(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  }
  return std::nullopt;
}

}  // namespace

std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::optional<Error>& own) {
  const std::vector<std::string> all = ranks.HostAllGather(Packed(own));
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) return RankFailure{static_cast<int>(r), Unpacked(all[r])};
  return std::nullopt;
}

std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::function<void()>& step) {
  return FirstFailure(ranks, FailureOf(step));
}

void OnLeader(Communicator& ranks, const std::function<void()>& step) {
  const std::optional<Error> own = ranks.rank() == 0 ? FailureOf(step) : std::nullopt;
  const std::string heard = ranks.HostBroadcast(Packed(own), 0);
  if (!heard.empty()) throw Unpacked(heard);
}

}  // namespace millrace
