#include "histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bentpipe
{

void
Histogram::Add(int64_t duration_ns)
{
    const uint64_t value = static_cast<uint64_t>(std::max<int64_t>(duration_ns, 0));
    const unsigned width = static_cast<unsigned>(std::bit_width(value));
    const unsigned shift = width > kBits + 1 ? width - kBits - 1 : 0;
    ++buckets_[(static_cast<size_t>(shift) << kBits) + (value >> shift)];
    ++count_;
    max_ns_ = std::max(max_ns_, value);
}

void
Histogram::Merge(const Histogram& other)
{
    for (size_t i = 0; i < kBuckets; ++i)
    {
        buckets_[i] += other.buckets_[i];
    }
    count_ += other.count_;
    max_ns_ = std::max(max_ns_, other.max_ns_);
}

double
Histogram::Percentile(double q) const
{
    const auto rank = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_))));
    uint64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i)
    {
        seen += buckets_[i];
        if (seen >= rank)
        {
            const size_t shift = i < (2U << kBits) ? 0 : (i >> kBits) - 1;
            const uint64_t top = i - (shift << kBits);
            const uint64_t upper = ((top + 1) << shift) - 1;
            return static_cast<double>(std::min(upper, max_ns_)) * 1e-9;
        }
    }
    return 0.0;
}

double
Histogram::Max() const
{
    return static_cast<double>(max_ns_) * 1e-9;
}

uint64_t
Histogram::Count() const
{
    return count_;
}

}  // namespace bentpipe
