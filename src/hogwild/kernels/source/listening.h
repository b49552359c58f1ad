// How a long call is told to end: its thread asks the caller a few times a second.
#pragma once
#include <chrono>

namespace hog {

/// The questions of one thread.
class Listening {
  public:
    static Listening& here() {
        thread_local Listening one;
        return one;
    }
    /// Ask this function from now on; nullptr: nobody. Whether an answer was yes before.
    bool to(int (*ask)()) {
        const bool before = heard_;
        ask_ = ask, heard_ = false, next_ = Clock::now() + EVERY;
        return before;
    }
    /// Once yes, always yes.
    bool asked_to_end() {
        if (!ask_ || heard_) return heard_;
        const Clock::time_point now = Clock::now();
        if (now < next_) return false;
        next_ = now + EVERY;
        return heard_ = ask_() != 0;
    }

  private:
    typedef std::chrono::steady_clock Clock;
    static constexpr std::chrono::milliseconds EVERY{50};
    int (*ask_)() = nullptr;
    bool heard_ = false;
    Clock::time_point next_;
};

}  // namespace hog
