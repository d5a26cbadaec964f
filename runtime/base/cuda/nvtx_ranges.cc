#include "runtime/base/cuda/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <map>
#include <vector>

namespace millrace {
namespace {

class NvtxRanges final : public ProfilerRanges {
 public:
  explicit NvtxRanges(nvtxDomainHandle_t domain) : domain_(domain) {}
  ~NvtxRanges() override { nvtxDomainDestroy(domain_); }
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  RangeName Register(const std::string& text) override {
    const auto [known, fresh] = names_.try_emplace(text, static_cast<RangeName>(strings_.size()));
    if (fresh)
      strings_.push_back({nvtxDomainRegisterStringA(domain_, text.c_str()), known->first.c_str()});
    return known->second;
  }

  void Begin(RangeName name) override {
    const Registered& string = strings_[static_cast<size_t>(name)];
    nvtxEventAttributes_t range = Attributes();
    if (string.handle != nullptr) {
      range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
      range.message.registered = string.handle;
    } else {  // a tool that knows no registered strings
      range.messageType = NVTX_MESSAGE_TYPE_ASCII;
      range.message.ascii = string.text;
    }
    nvtxDomainRangePushEx(domain_, &range);
  }

  void Begin(const std::string& text) override {
    nvtxEventAttributes_t range = Attributes();
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = text.c_str();
    nvtxDomainRangePushEx(domain_, &range);
  }

  void End() override { nvtxDomainRangePop(domain_); }

 private:
  struct Registered {
    nvtxStringHandle_t handle;
    const char* text;  // names_ owns it
  };
  static nvtxEventAttributes_t Attributes() {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    return attributes;
  }

  nvtxDomainHandle_t domain_;
  std::map<std::string, RangeName> names_;
  std::vector<Registered> strings_;
};

}  // namespace

std::unique_ptr<ProfilerRanges> MakeNvtxRanges() {
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("millrace");
  return domain != nullptr ? std::make_unique<NvtxRanges>(domain) : nullptr;
}

}  // namespace millrace
