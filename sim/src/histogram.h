#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bentpipe
{

/// Percentiles of durations in constant memory. A bucket has a width of 1/64 of its value, so a percentile is at most 1.6 % too large.
class Histogram
{
  public:
    /// Adds a duration in ns. A negative duration (a timer that fired early) counts as 0.
    void Add(int64_t duration_ns);

    /// Adds all durations of another histogram.
    void Merge(const Histogram& other);

    /// The duration in s that the fraction `q` (0..1) of all durations does not exceed; 0 when empty.
    double Percentile(double q) const;

    /// The exact largest duration in s.
    double Max() const;

    uint64_t Count() const;

  private:
    static constexpr unsigned kBits = 6;
    static constexpr size_t kBuckets = (64 - kBits + 1) << kBits;

    std::array<uint64_t, kBuckets> buckets_{};
    uint64_t count_ = 0;
    uint64_t max_ns_ = 0;
};

}  // namespace bentpipe
