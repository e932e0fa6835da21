#pragma once

#include "fields.h"
#include "flows.h"

#include "ns3/error-model.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace bentpipe
{

/// The first and the last packet of a range, counted from 1 in one direction.
struct PacketRange
{
    uint64_t first = 0;
    uint64_t last = 0;
};

/// Loss with the two states of Gilbert and Elliott: every packet of the bad state is lost, and no packet of the good state.
struct GilbertElliott
{
    double to_bad = 0.0;   ///< probability per packet of leaving the good state
    double to_good = 0.0;  ///< probability per packet of leaving the bad state
};

/// The packets that one direction loses after their transmission.
struct LossParameters
{
    double fraction = 0.0;
    std::optional<GilbertElliott> gilbert_elliott;  ///< loses in bursts, instead of `fraction`
    std::vector<PacketRange> list;                  ///< these packets are lost, in addition to those of `fraction`
    uint32_t burst = 0;                             ///< longest run of losses; 0: no limit
    bool udp_only = true;                           ///< packets of other protocols are never lost
    bool changes = false;                           ///< the fraction changes later
};

/// A loss model whose probability can change.
class UniformLoss : public ns3::ErrorModel
{
  public:
    virtual void SetProbability(double probability) = 0;
};

/// The loss model of one direction.
struct LossModel
{
    ns3::Ptr<ns3::ErrorModel> model;  ///< null when no packet is ever lost there
    ns3::Ptr<UniformLoss> uniform;    ///< the part of `model` whose probability `changes` set; null when there is no such part
};

/// Reads `loss` of a direction, and the losses of its impairments; throws UserError.
LossParameters ReadLoss(Fields& direction, Fields& impairments);

/// The longest run of losses, and of corruptions, of a direction; 0: no limit.
uint32_t ReadBurst(Fields& impairments);

/// Makes the loss model of one direction.
///
/// A model is an ns3::ErrorModel. To add a kind, add a subclass and make it here. `stream` is the direction's own stream of the
/// random number generator, so that the directions are independent of each other. `flows` must outlive the model.
LossModel MakeLossModel(const LossParameters& loss, Flows& flows, int64_t stream);

}  // namespace bentpipe
