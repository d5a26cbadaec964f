// A profiler as NVTX loads one (NVTX_INJECTION64_PATH): writes down what a program says, for the
// program's test to read.
#include <nvtx3/nvToolsExt.h>

#include <deque>
#include <string>

namespace {

std::string& Log() {
  static std::string log;
  return log;
}
// A domain's handle is its name's place in here; likewise of registered strings.
std::deque<std::string>& Domains() {
  static std::deque<std::string> domains;
  return domains;
}
std::deque<std::string>& Strings() {
  static std::deque<std::string> strings;
  return strings;
}

void Write(nvtxDomainHandle_t domain, const std::string& text) {
  Log() += *reinterpret_cast<std::string*>(domain) + ": " + text + "\n";
}

nvtxDomainHandle_t CreateDomain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(&Domains().emplace_back(name));
}
nvtxStringHandle_t RegisterString(nvtxDomainHandle_t domain, const char* text) {
  Write(domain, std::string("registered ") + text);
  return reinterpret_cast<nvtxStringHandle_t>(&Strings().emplace_back(text));
}
int Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const bool registered = range->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  Write(domain,
        "begin " + (registered ? *reinterpret_cast<std::string*>(range->message.registered) +
                                     " (registered)"
                               : std::string(range->message.ascii)));
  return 0;
}
int Pop(nvtxDomainHandle_t domain) {
  Write(domain, "end");
  return 0;
}
void DestroyDomain(nvtxDomainHandle_t domain) { Write(domain, "destroyed"); }

template <class F>
void Set(NvtxFunctionTable table, int id, F* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" const char* NvtxListenerLog() { return Log().c_str(); }

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
      size <= NVTX_CBID_CORE2_DomainDestroy)
    return 0;
  Set(table, NVTX_CBID_CORE2_DomainCreateA, CreateDomain);
  Set(table, NVTX_CBID_CORE2_DomainDestroy, DestroyDomain);
  Set(table, NVTX_CBID_CORE2_DomainRegisterStringA, RegisterString);
  Set(table, NVTX_CBID_CORE2_DomainRangePushEx, Push);
  Set(table, NVTX_CBID_CORE2_DomainRangePop, Pop);
  return 1;
}
