// A host with threads of its own, for the tests.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "recurrence.h"

class Threads {
 public:
  explicit Threads(int count) : count_(count) {}

  sruexport::cpu::Host host() {
    return {count_,
            [](void* self, sruexport::cpu::Task task, std::size_t count, void* data) {
              static_cast<Threads*>(self)->run(task, count, data);
            },
            this};
  }
  // How often a kernel has asked for threads.
  int calls() const { return calls_; }

 private:
  void run(sruexport::cpu::Task task, std::size_t count, void* data) {
    ++calls_;
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> running;
    for (int i = 0; i < count_; ++i) {
      running.emplace_back([&] {
        for (std::size_t index; (index = next++) < count;) task(data, index);
      });
    }
    for (auto& thread : running) thread.join();
  }

  int count_;
  int calls_ = 0;
};
