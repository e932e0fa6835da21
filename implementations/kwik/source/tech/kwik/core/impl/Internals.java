package tech.kwik.core.impl;

import tech.kwik.core.QuicClientConnection;

/** What a client needs of kwik's connections and kwik shows to its own package alone. */
public final class Internals {

    private Internals() {}

    /** Whether the handshake is confirmed (RFC 9001 §4.1.2), before which keys can't be updated. */
    public static boolean isConfirmed(QuicClientConnection connection) {
        return ((QuicConnectionImpl) connection).handshakeState == HandshakeState.Confirmed;
    }

    public static void updateKeys(QuicClientConnection connection) {
        ((QuicClientConnectionImpl) connection).updateKeys();
    }

    /** The secret that 0-RTT packets are protected with; kwik's own key log lacks it. */
    public static byte[] earlySecret(QuicClientConnection connection) {
        return ((QuicConnectionImpl) connection).getTlsEngine().getClientEarlyTrafficSecret();
    }
}
