#pragma once

#include <cstdint>

#include <time.h>

namespace bentpipe
{

inline int64_t
Nanoseconds(const timespec& time)
{
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// ns of a clock of clock_gettime(2).
inline int64_t
ReadClock(clockid_t clock)
{
    timespec now{};
    clock_gettime(clock, &now);
    return Nanoseconds(now);
}

}  // namespace bentpipe
