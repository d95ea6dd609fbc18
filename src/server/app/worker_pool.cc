#include "server/app/worker_pool.h"

#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

namespace sluice::server {

class WorkerPool::Impl {
 public:
  explicit Impl(int num_threads) : threads_(static_cast<size_t>(num_threads)) {}
  ~Impl() { threads_.join(); }

  // An exception that leaves a thread would end the process, and with it all other requests.
  void post(std::function<void()> work) {
    boost::asio::post(threads_, [work = std::move(work)] {
      try {
        work();
      } catch (...) {  // whoever waits for the work sees that its exchange is given up
      }
    });
  }

 private:
  boost::asio::thread_pool threads_;
};

WorkerPool::WorkerPool(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}

WorkerPool::~WorkerPool() = default;

void WorkerPool::post(std::function<void()> work) { impl_->post(std::move(work)); }

}  // namespace sluice::server
