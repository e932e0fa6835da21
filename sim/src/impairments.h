#pragma once

#include "anchor.h"
#include "fields.h"
#include "impairment.h"

#include "ns3/drop-tail-queue.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace bentpipe
{

/// What impairments of a direction stand in; anchor and queue must outlive them.
struct Surroundings
{
    const Anchor& anchor;
    ns3::Ptr<ns3::DropTailQueue<ns3::Packet>> queue;
    int64_t first_stream;  ///< the first of kImpairmentStreams streams of the random number generator for this direction
};

using ImpairmentMaker = std::function<std::unique_ptr<Impairment>(const Surroundings&)>;

constexpr int64_t kImpairmentStreams = 4;

/// What is asked of one direction, in the order in which it acts: drops, marks, corrupts, delays. Throws UserError.
///
/// `direction` and `both`: the fields `impairments` of a direction and of the document. Another impairment is another
/// subclass of Impairment, with its event and a line in the table of impairments.cc.
std::vector<ImpairmentMaker> ReadImpairments(Fields& direction, Fields& both);

/// What happens to packets by impairments, the NAT included.
std::vector<PacketEvent> ImpairmentEvents();

}  // namespace bentpipe
