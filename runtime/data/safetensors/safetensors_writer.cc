#include "runtime/data/safetensors/safetensors_writer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

std::string Temporary(const std::string& path) { return path + ".tmp"; }

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata,
                                     FileSystem& files)
    : files_(files),
      path_(std::move(path)),
      layout_(PlanSafetensors(specs, metadata)),
      written_(specs.size(), 0),
      file_(std::make_unique<OutputFile>(files, Temporary(path_))) {
  try {
    file_->Reserve(layout_.file_bytes);
    file_->Write(0, layout_.header.data(), static_cast<int64_t>(layout_.header.size()));
  } catch (...) {
    files_.RemoveFile(Temporary(path_));
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  files_.RemoveFile(Temporary(path_));
}

void SafetensorsWriter::Write(int64_t index, const void* data, int64_t bytes) {
  MR_CHECK(file_ != nullptr && index >= 0 && index < int64_t(written_.size()),
           "tensor {} of {} in {}", index, written_.size(), path_);
  const TensorInfo& tensor = layout_.tensors[static_cast<size_t>(index)];
  int64_t& written = written_[static_cast<size_t>(index)];
  MR_CHECK(bytes >= 0 && bytes <= tensor.bytes - written,
           "tensor \"{}\" has {} bytes; {} more after {} are too many", tensor.spec.name,
           tensor.bytes, bytes, written);
  file_->Write(tensor.offset + written, data, bytes);
  written += bytes;
}

void SafetensorsWriter::WriteFloats(int64_t index, const float* values, int64_t n) {
  MR_CHECK(index >= 0 && index < int64_t(written_.size()), "tensor {} of {} in {}", index,
           written_.size(), path_);
  const std::string& dtype = layout_.tensors[static_cast<size_t>(index)].spec.dtype;
  if (dtype == "F32") return Write(index, values, n * 4);
  MR_REQUIRE(ErrorCode::kInvalidArgument, dtype == "BF16" || dtype == "F64",
             "floats are written as F32, BF16 or F64, not as {}", dtype);
  constexpr int64_t kChunk = 16384;
  std::vector<BFloat16> narrow(dtype == "BF16" ? kChunk : 0);
  std::vector<double> wide(dtype == "F64" ? kChunk : 0);
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t length = std::min(kChunk, n - done);
    if (dtype == "BF16") {
      ConvertToBFloat16(values + done, narrow.data(), length);
      Write(index, narrow.data(), length * 2);
    } else {
      std::copy_n(values + done, length, wide.begin());
      Write(index, wide.data(), length * 8);
    }
  }
}

void SafetensorsWriter::Finish() {
  MR_CHECK(file_ != nullptr, "{} is finished already", path_);
  for (size_t i = 0; i < written_.size(); ++i)
    MR_CHECK_EQ(written_[i], layout_.tensors[i].bytes, "tensor \"{}\" of {} is not complete",
                layout_.tensors[i].spec.name, path_);
  file_->SyncAndClose();
  Rename(files_, Temporary(path_), path_);
  file_.reset();
}

}  // namespace millrace
