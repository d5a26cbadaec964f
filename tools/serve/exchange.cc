#include "tools/serve/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace millrace::serve {
namespace {

constexpr size_t kStreamBlock = 16 << 10;

std::string HeaderOf(MHD_Connection* connection, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value != nullptr ? value : "";
}

}  // namespace

bool BodyBudget::Take(int64_t bytes) {
  if ((left_ -= bytes) >= 0) return true;
  left_ += bytes;
  return false;
}

Exchange::Exchange(ServeApi& api, MHD_Connection* connection, BodyBudget& budget,
                   int64_t most_bytes)
    : api_(api), budget_(budget), most_bytes_(most_bytes), connection_(connection) {}

Exchange::~Exchange() { FreeBody(); }

void Exchange::FreeBody() {
  body_ = {};
  budget_.GiveBack(std::exchange(taken_, 0));
}

// A refusal of a body that is small enough is sent once it has been read: a client that is still
// sending may not look for an answer.
MHD_Result Exchange::Begin(const char* method, const char* path) {
  method_ = method;
  path_ = path;
  error_ = api_.Check(method_, path_, HeaderOf(connection_, MHD_HTTP_HEADER_AUTHORIZATION),
                      HeaderOf(connection_, MHD_HTTP_HEADER_ORIGIN));
  const std::string length = HeaderOf(connection_, MHD_HTTP_HEADER_CONTENT_LENGTH);
  if (length.empty() ||
      std::strtoull(length.c_str(), nullptr, 10) <= static_cast<unsigned long long>(most_bytes_))
    return MHD_YES;
  return Refuse(
      {.status = 413,
       .message = fmt::format("the body has {} bytes; allowed are {}", length, most_bytes_),
       .code = "body_too_large"});
}

MHD_Result Exchange::Receive(const char* bytes, size_t* count) {
  const auto more = static_cast<int64_t>(std::exchange(*count, 0));
  if (error_) return MHD_YES;
  if (std::ssize(body_) + more > most_bytes_) {
    error_ = {.status = 413,
              .message = fmt::format("the body has more than {} bytes", most_bytes_),
              .code = "body_too_large"};
  } else if (!budget_.Take(more)) {
    error_ = {.status = 503,
              .message = "too many bodies are being received",
              .code = "overloaded",
              .retry_after_s = 1};
  }
  if (error_) {
    FreeBody();
    return MHD_YES;
  }
  taken_ += more;
  body_.append(bytes, static_cast<size_t>(more));
  return MHD_YES;
}

MHD_Result Exchange::Refuse(const ApiError& error) {
  auto reply = std::make_shared<ReplyBuffer>();
  reply->Error(error);
  Hold(std::move(reply));
  return Send();
}

void Exchange::Hold(std::shared_ptr<ReplyBuffer> reply) {
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
  if (left_) reply_->Abandon();
}

MHD_Result Exchange::Answer() {
  if (!reply_) {
    if (error_) return Refuse(*error_);
    Hold(api_.Answer(method_, path_, body_));
    FreeBody();
  }
  switch (Suspend()) {
    case State::kReady:
      return Send();
    case State::kSuspended:
      return MHD_YES;
    case State::kLeft:
      break;
  }
  return MHD_NO;
}

Exchange::State Exchange::Suspend() {
  const std::lock_guard lock(mutex_);
  if (connection_ == nullptr || left_) return State::kLeft;
  if (reply_->Ready([self = weak_from_this()] {
        if (const auto exchange = self.lock()) exchange->Wake();
      }))
    return State::kReady;
  suspended_ = true;
  MHD_suspend_connection(connection_);
  return State::kSuspended;
}

// May come before Suspend has done its work: then it waits for the mutex.
void Exchange::Wake() {
  const std::lock_guard lock(mutex_);
  if (connection_ != nullptr && std::exchange(suspended_, false))
    MHD_resume_connection(connection_);
}

MHD_Response* Exchange::MakeResponse(const ReplyHead& head) {
  if (head.is_stream)
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kStreamBlock, &ReadStream,
                                             new std::shared_ptr<Exchange>(shared_from_this()),
                                             &FreeStream);
  std::string body = reply_->TakeAll();
  return MHD_create_response_from_buffer(body.size(), body.data(), MHD_RESPMEM_MUST_COPY);
}

MHD_Result Exchange::Send() {
  const ReplyHead head = reply_->head();
  MHD_Response* const response = MakeResponse(head);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, head.content_type.c_str());
  for (const auto& [name, value] : head.headers)
    MHD_add_response_header(response, name.c_str(), value.c_str());
  const MHD_Result result =
      MHD_queue_response(connection_, static_cast<unsigned>(head.status), response);
  MHD_destroy_response(response);
  return result;
}

ssize_t Exchange::ReadStream(void* cls, uint64_t, char* to, size_t most) {
  Exchange& exchange = **static_cast<std::shared_ptr<Exchange>*>(cls);
  const size_t count = exchange.reply_->Read(to, most);
  if (count > 0) return static_cast<ssize_t>(count);
  if (exchange.reply_->AtEnd()) return MHD_CONTENT_READER_END_OF_STREAM;
  // 0: libmicrohttpd asks again.
  return exchange.Suspend() == State::kLeft ? MHD_CONTENT_READER_END_WITH_ERROR : 0;
}

void Exchange::FreeStream(void* cls) { delete static_cast<std::shared_ptr<Exchange>*>(cls); }

void Exchange::Leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  if (reply_) reply_->Abandon();
  if (connection_ != nullptr && std::exchange(suspended_, false))
    MHD_resume_connection(connection_);
}

void Exchange::End() {
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
  if (reply_) reply_->Abandon();
}

}  // namespace millrace::serve
