#include "runtime/text/tokenize/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/input_file.h"

namespace millrace {
namespace {

constexpr int64_t kChunk = int64_t{1} << 18;

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : file_(path, ErrorCode::kData) {}

  int64_t Read(char* out, int64_t bytes) override {
    const int64_t n = std::min(bytes, file_.size() - at_);
    file_.Read(at_, out, n);
    at_ += n;
    return n;
  }
  int64_t file_bytes() const noexcept override { return file_.size(); }
  int64_t consumed() const noexcept override { return at_; }

 protected:
  const InputFile& file() const { return file_; }

 private:
  InputFile file_;
  int64_t at_ = 0;
};

// Compressed bytes of a file, a chunk at a time.
class Compressed : public ByteStream {
 public:
  explicit Compressed(const std::string& path) : plain_(path), path_(path), chunk_(kChunk) {}

  int64_t file_bytes() const noexcept override { return plain_.file_bytes(); }
  int64_t consumed() const noexcept override {
    return plain_.consumed() - static_cast<int64_t>(chunk_end_ - chunk_at_);
  }

 protected:
  // More input where there is none; false at the end of the file.
  bool Fill() {
    if (chunk_at_ < chunk_end_) return true;
    chunk_at_ = 0;
    chunk_end_ = static_cast<size_t>(plain_.Read(chunk_.data(), kChunk));
    return chunk_end_ > 0;
  }
  char* input() { return chunk_.data() + chunk_at_; }
  size_t input_left() const { return chunk_end_ - chunk_at_; }
  void Take(size_t bytes) { chunk_at_ += bytes; }

  [[noreturn]] void Fail(const char* format, const std::string& what) const {
    throw Error(ErrorCode::kData, fmt::format("{}: damaged {} data near byte {} of {}: {}", path_,
                                              format, consumed(), file_bytes(), what));
  }

 private:
  PlainStream plain_;
  std::string path_;
  std::vector<char> chunk_;
  size_t chunk_at_ = 0, chunk_end_ = 0;
};

class GzipStream final : public Compressed {
 public:
  explicit GzipStream(const std::string& path) : Compressed(path) {
    const int result = inflateInit2(&state_, 15 + 16);  // the largest window, gzip headers only
    MR_REQUIRE(ErrorCode::kOutOfMemory, result == Z_OK, "zlib: error {}", result);
  }
  ~GzipStream() override { inflateEnd(&state_); }

  int64_t Read(char* out, int64_t bytes) override {
    state_.next_out = reinterpret_cast<Bytef*>(out);
    int64_t left = bytes;
    while (left > 0 && Fill()) {
      const auto room = static_cast<uInt>(std::min<int64_t>(left, kChunk));
      const auto given = static_cast<uInt>(input_left());
      state_.next_in = reinterpret_cast<Bytef*>(input());
      state_.avail_in = given;
      state_.avail_out = room;
      const int result = inflate(&state_, Z_NO_FLUSH);
      Take(given - state_.avail_in);
      left -= room - state_.avail_out;
      in_member_ = result != Z_STREAM_END;
      if (result == Z_STREAM_END)
        inflateReset(&state_);  // another member may follow
      else if (result != Z_OK && result != Z_BUF_ERROR)
        Fail("gzip", state_.msg != nullptr ? state_.msg : "no gzip data");
    }
    if (left > 0 && in_member_) Fail("gzip", "the file is cut off");
    return bytes - left;
  }

 private:
  z_stream state_ = {};
  bool in_member_ = true;  // an empty file is cut off, too
};

class ZstdStream final : public Compressed {
 public:
  explicit ZstdStream(const std::string& path) : Compressed(path), state_(ZSTD_createDStream()) {
    MR_REQUIRE(ErrorCode::kOutOfMemory, state_ != nullptr, "zstd: no memory");
  }

  int64_t Read(char* out, int64_t bytes) override {
    ZSTD_outBuffer output = {out, static_cast<size_t>(bytes), 0};
    // What a full buffer held back comes before more input is asked for.
    while (output.pos < output.size && (pending_ || Fill())) {
      ZSTD_inBuffer input_buffer = {input(), input_left(), 0};
      const size_t before = output.pos;
      const size_t result = ZSTD_decompressStream(state_.get(), &output, &input_buffer);
      if (ZSTD_isError(result)) Fail("zstd", ZSTD_getErrorName(result));
      Take(input_buffer.pos);
      in_frame_ = result != 0;
      pending_ = in_frame_ && output.pos == output.size;
      if (output.pos == before && input_buffer.pos == 0 && input_left() == 0) pending_ = false;
    }
    if (output.pos < output.size && in_frame_) Fail("zstd", "the file is cut off");
    return static_cast<int64_t>(output.pos);
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* state) const noexcept { ZSTD_freeDStream(state); }
  };
  std::unique_ptr<ZSTD_DStream, Free> state_;
  bool in_frame_ = true;  // an empty file is cut off, too
  bool pending_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> OpenByteStream(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipStream>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

void SkipBytes(ByteStream& stream, int64_t bytes, const std::string& path) {
  std::vector<char> chunk(kChunk);
  for (int64_t done = 0; done < bytes;) {
    const int64_t got = stream.Read(chunk.data(), std::min(kChunk, bytes - done));
    MR_REQUIRE(ErrorCode::kData, got > 0, "{}: its text ends at byte {}, before {}", path, done,
               bytes);
    done += got;
  }
}

}  // namespace millrace
