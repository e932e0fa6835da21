#pragma once

#include "anchor.h"
#include "impairment.h"
#include "parameters.h"

#include "ns3/drop-tail-queue.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace bentpipe
{

/// What one direction does to its packets, in this order: drops, marks, corrupts, delays.
///
/// `first_stream` is the first of kImpairmentStreams streams of the random number generator that belong to this direction.
/// Another impairment is another subclass of Impairment, made here. `anchor` and `queue` must outlive the result.
std::vector<std::unique_ptr<Impairment>> MakeImpairments(const LinkParameters& link,
                                                         const Parameters& path,
                                                         const Anchor& anchor,
                                                         ns3::Ptr<ns3::DropTailQueue<ns3::Packet>> queue,
                                                         int64_t first_stream);

constexpr int64_t kImpairmentStreams = 4;

}  // namespace bentpipe
