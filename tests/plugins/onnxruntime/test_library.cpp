// What the custom-op library says to a runtime that it does not fit.
#include <dlfcn.h>
#include <doctest/doctest.h>
#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <string>

namespace {

std::string said;
std::vector<std::uint32_t> asked;

OrtStatus* ORT_API_CALL create_status(OrtErrorCode, const char* message) noexcept {
  said = message;
  return reinterpret_cast<OrtStatus*>(&said);
}

// Of a runtime that knows the API's first version only.
const OrtApi* ORT_API_CALL get_api(std::uint32_t version) noexcept {
  static OrtApi api{};
  api.CreateStatus = create_status;
  asked.push_back(version);
  return version == 1 ? &api : nullptr;
}

const char* ORT_API_CALL get_version() noexcept { return "1.9.9"; }

}  // namespace

TEST_CASE("an older runtime is told which version is needed") {
  void* library = dlopen(SRUEXPORT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  using Register = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*);
  const auto register_ops = reinterpret_cast<Register>(dlsym(library, "RegisterCustomOps"));
  REQUIRE(register_ops);
  const OrtApiBase base{get_api, get_version};
  CHECK(register_ops(nullptr, &base) == reinterpret_cast<OrtStatus*>(&said));
  CHECK(said == "sruexport's kernels need ONNX Runtime 1." + std::to_string(asked.front()) +
                    " or newer, and this is 1.9.9");
}

TEST_CASE("it says which instruction set it uses") {
  void* library = dlopen(SRUEXPORT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  const auto target = reinterpret_cast<const char* (*)()>(dlsym(library, "sruexport_kernels_target"));
  REQUIRE(target);
  const std::string name = target();
  CHECK((name == "AVX-512" || name == "AVX2" || name == "portable"));
}
