package ackhandler

import "github.com/quic-go/quic-go/internal/utils"

// Tune sets how 1-RTT packets are acknowledged; before the first of them.
func (h *ReceivedPacketHandler) Tune(tuning utils.Tuning) { h.appDataPackets.tuning = tuning }
