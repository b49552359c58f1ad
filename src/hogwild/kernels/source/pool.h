// Threads that help with a call, and sleep between calls: starting a thread takes as long as solving a
// small graph.
//
// Nobody waits for a helper that has not begun. Where other programs take the cores, helpers come late,
// and the caller has done the work itself.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hog {

class Pool {
  public:
    static Pool& shared() {
        static const int watched = pthread_atfork(nullptr, nullptr, [] { current() = new Pool; });
        (void)watched;
        return *current();
    }

    /// Run `work(0)` here and, as far as helpers come in time, `work(1)` to `work(helpers)` elsewhere.
    /// `work` must not throw. It must end when nothing is left to do, for each caller by itself.
    void run(int64_t helpers, const std::function<void(int64_t)>& work) {
        Job job{&work, helpers};
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            for (; started_ < helpers; ++started_) try {
                    std::thread([this] { help(); }).detach();
                } catch (const std::exception&) {
                    break;  // the system starts no more threads
                }
            jobs_.push_back(&job);
        }
        for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
        work(0);
        std::unique_lock<std::mutex> lock(mutex_);
        jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
        done_.wait(lock, [&] { return job.working == 0; });
    }

  private:
    struct Job {
        const std::function<void(int64_t)>* work;
        int64_t wanted, begun = 0, working = 0;
    };

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<Job*> jobs_;  // of all callers
    int64_t started_ = 0;

    /// It outlives all threads. A child of a fork has none of them, and gets a pool of its own.
    static Pool*& current() {
        static Pool* one = new Pool;
        return one;
    }
    Job* open() const {
        for (Job* job : jobs_)
            if (job->begun < job->wanted) return job;
        return nullptr;
    }
    void help() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            Job* job = nullptr;
            wake_.wait(lock, [&] { return (job = open()) != nullptr; });
            const int64_t number = ++job->begun;
            ++job->working;
            lock.unlock();
            (*job->work)(number);
            lock.lock();
            if (--job->working == 0) done_.notify_all();
        }
    }
};

}  // namespace hog
