// What ONNX Runtime calls when it loads the library, and what others may ask it.
#include <stdexcept>
#include <string>

#include "operator.h"

#if defined(_WIN32)
#define SRUEXPORT_EXPORT extern "C" __declspec(dllexport)
#else
#define SRUEXPORT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

Ort::CustomOpDomain& domain() {
  // Never destroyed: sessions outlive static objects.
  static Ort::CustomOpDomain* const made = [] {
    auto* domain = new Ort::CustomOpDomain("sruexport");
    for (const auto list : {sruexport::ort::sru_recurrences, sruexport::ort::linear_recurrences}) {
      for (const OrtCustomOp* op : list()) domain->Add(op);
    }
    return domain;
  }();
  return *made;
}

}  // namespace

// Adds the ops of domain sruexport to a session's options.
SRUEXPORT_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (!api) {
    // A runtime that old still makes statuses, and those have been in the API since its first version.
    const std::string why = "sruexport's kernels need ONNX Runtime 1." + std::to_string(ORT_API_VERSION) +
                            " or newer, and this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_FAIL, why.c_str());
  }
  Ort::InitApi(api);
  try {
    Ort::UnownedSessionOptions(options).Add(domain());
    return nullptr;
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_FAIL, error.what());
  }
}

// The instruction set that the kernels use on this machine: "AVX-512", "AVX2" or "portable".
SRUEXPORT_EXPORT const char* sruexport_kernels_target() { return sruexport::cpu::name(sruexport::cpu::best_target()); }
