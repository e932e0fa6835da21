package ackhandler

import "github.com/quic-go/quic-go/internal/utils"

// Tune sets how 1-RTT packets are acknowledged. Call it before the first 1-RTT packet.
func (h *ReceivedPacketHandler) Tune(tuning utils.Tuning) { h.appDataPackets.tuning = tuning }
