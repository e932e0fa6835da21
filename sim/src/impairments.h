#pragma once

#include "anchor.h"
#include "fields.h"
#include "flows.h"
#include "impairment.h"

#include "ns3/queue-disc.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace bentpipe
{

class Transmitter;

/// The objects that the impairments of a direction use. Anchor, flows and queue must outlive the impairments.
struct Surroundings
{
    const Anchor& anchor;
    Flows& flows;
    ns3::Ptr<ns3::QueueDisc> queue;
    const Transmitter& transmitter;
    int64_t first_stream;  ///< the first of this direction's kImpairmentStreams streams of the random number generator
};

using ImpairmentMaker = std::function<std::unique_ptr<Impairment>(const Surroundings&)>;

constexpr int64_t kImpairmentStreams = 4;
constexpr int64_t kQueueStream = 3;  ///< of these, for the random numbers of the queue

/// The impairments of one direction, in the order in which they act: drops, marks, corruption, delays. Throws UserError.
///
/// `direction` and `both`: the fields `impairments` of a direction and of the document. To add an impairment, add a subclass of
/// Impairment, with its event and a line in the table of impairments.cc.
std::vector<ImpairmentMaker> ReadImpairments(Fields& direction, Fields& both);

/// All events that impairments, the queue and the NAT cause.
std::vector<PacketEvent> ImpairmentEvents();

constexpr PacketEvent kMark{7, "marked"};                    ///< marked with CE
constexpr PacketEvent kDropHandover{10, "dropped_handover"};  ///< lost while a handover went on

}  // namespace bentpipe
