#pragma once

#include "parameters.h"

#include "ns3/error-model.h"

#include <cstdint>

namespace bentpipe
{

/// Makes the loss model of one direction, or null when nothing is lost there.
///
/// A model is an ns3::ErrorModel; another kind is another subclass, made here. `stream` is the direction's own stream of the
/// random number generator, so that the directions stay independent of each other.
ns3::Ptr<ns3::ErrorModel> MakeLossModel(const LinkParameters& link, LossProtocol protocol, int64_t stream);

}  // namespace bentpipe
